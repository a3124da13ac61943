-- A mesh and whoever owns it. `join_secret` makes the keys that joiners seal their proof to, so that no challenge is kept. `policy`
-- is what becomes of two connections with one key. A plaintext mesh lets the broker read what is sent.
CREATE TABLE meshes (
    tenant BIGINT NOT NULL,
    mesh_id BYTEA NOT NULL,
    slug TEXT NOT NULL,
    plaintext BIGINT NOT NULL,
    policy TEXT NOT NULL,
    owner BYTEA NOT NULL,
    join_secret BYTEA NOT NULL,
    created_at BIGINT NOT NULL,
    created_by TEXT NOT NULL,
    PRIMARY KEY (tenant, mesh_id)
);
CREATE UNIQUE INDEX meshes_by_slug ON meshes (tenant, slug);
-- Members name a mesh by its id alone; the tenant is found by it.
CREATE UNIQUE INDEX meshes_by_id ON meshes (mesh_id);

-- The last number of history and of events. Whoever takes the next one holds the row until the commit, so the numbers are in the
-- order of commits and a reader that has passed one misses nothing behind it.
CREATE TABLE mesh_counters (
    tenant BIGINT NOT NULL,
    mesh_id BYTEA NOT NULL,
    kind TEXT NOT NULL,
    last BIGINT NOT NULL,
    PRIMARY KEY (tenant, mesh_id, kind)
);

-- `state` is live, revoked or left. `ed25519` is the member's present key; all that it ever had are in mesh_keys. `expires_at` is for
-- members that joined for some time only.
CREATE TABLE mesh_members (
    tenant BIGINT NOT NULL,
    mesh_id BYTEA NOT NULL,
    member_id BYTEA NOT NULL,
    name TEXT NOT NULL,
    state TEXT NOT NULL,
    ed25519 BYTEA NOT NULL,
    summary TEXT,
    status TEXT,
    visible BIGINT NOT NULL,
    joined_at BIGINT NOT NULL,
    ended_at BIGINT,
    expires_at BIGINT,
    PRIMARY KEY (tenant, mesh_id, member_id)
);
CREATE UNIQUE INDEX mesh_members_by_name ON mesh_members (tenant, mesh_id, name) WHERE state = 'live';
CREATE INDEX mesh_members_expiring ON mesh_members (expires_at) WHERE expires_at IS NOT NULL AND state = 'live';

-- A key belongs to one member for ever. `state` is current or rotated_out: what was sealed for or by an old key can still be read.
-- `rotation` is what the key before it has signed: members that were away while it happened believe nobody else.
CREATE TABLE mesh_keys (
    tenant BIGINT NOT NULL,
    mesh_id BYTEA NOT NULL,
    ed25519 BYTEA NOT NULL,
    member_id BYTEA NOT NULL,
    x25519 BYTEA NOT NULL,
    x25519_signature BYTEA NOT NULL,
    rotation TEXT,
    state TEXT NOT NULL,
    added_at BIGINT NOT NULL,
    ended_at BIGINT,
    PRIMARY KEY (tenant, mesh_id, ed25519)
);
CREATE INDEX mesh_keys_of_member ON mesh_keys (tenant, mesh_id, member_id);

CREATE TABLE mesh_invites (
    tenant BIGINT NOT NULL,
    mesh_id BYTEA NOT NULL,
    invite_id BYTEA NOT NULL,
    issuer BYTEA NOT NULL,
    issuer_key BYTEA NOT NULL,
    uses BIGINT NOT NULL,
    used BIGINT NOT NULL,
    expires_at BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (tenant, mesh_id, invite_id)
);
CREATE INDEX mesh_invites_over ON mesh_invites (expires_at);

-- Who is connected. A row whose lease has ended is of a process that is gone.
CREATE TABLE mesh_connections (
    tenant BIGINT NOT NULL,
    mesh_id BYTEA NOT NULL,
    member_id BYTEA NOT NULL,
    connection_id BYTEA NOT NULL,
    connected_at BIGINT NOT NULL,
    lease_until BIGINT NOT NULL,
    PRIMARY KEY (tenant, mesh_id, member_id, connection_id)
);
CREATE INDEX mesh_connections_over ON mesh_connections (lease_until);

-- What happened to a mesh, for audits and for those who are connected.
CREATE TABLE mesh_events (
    tenant BIGINT NOT NULL,
    mesh_id BYTEA NOT NULL,
    seq BIGINT NOT NULL,
    kind TEXT NOT NULL,
    member_id BYTEA,
    data TEXT NOT NULL,
    at BIGINT NOT NULL,
    PRIMARY KEY (tenant, mesh_id, seq)
);
CREATE INDEX mesh_events_old ON mesh_events (at);
