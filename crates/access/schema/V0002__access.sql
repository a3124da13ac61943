-- Number 1 is the default tenant, whose admins are the operators. Numbers are ours and not a sequence's: a sequence
-- loses numbers to whoever rolls back, and then nobody could say which tenant is the default one.
CREATE TABLE tenants (
    tenant BIGINT NOT NULL PRIMARY KEY,
    tenant_id BYTEA NOT NULL,
    name TEXT NOT NULL,
    tier TEXT NOT NULL,
    created_at BIGINT NOT NULL
);

CREATE UNIQUE INDEX tenants_by_id ON tenants (tenant_id);
CREATE UNIQUE INDEX tenants_by_name ON tenants (name);

CREATE TABLE api_keys (
    tenant BIGINT NOT NULL,
    key_id TEXT NOT NULL,
    principal TEXT NOT NULL,
    roles TEXT NOT NULL,
    scopes TEXT NOT NULL,
    -- Argon2id of the secret, as a PHC string. It never changes: rotation makes another row.
    hash TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    created_by TEXT NOT NULL,
    expires_at BIGINT,
    revoked_at BIGINT,
    -- The key id of the successor a rotation has made.
    replaced_by TEXT,
    PRIMARY KEY (tenant, key_id)
);

-- Authentication knows the key id and not yet the tenant. Key ids are random and nobody chooses one, so that they are
-- unique over all tenants tells no tenant anything about another.
CREATE UNIQUE INDEX api_keys_by_id ON api_keys (key_id);
CREATE INDEX api_keys_by_time ON api_keys (tenant, created_at, key_id);
