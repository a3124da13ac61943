-- Build slots: who builds where. Advisory: a slot may have several holders, who are told of each other. One row per agent and slot,
-- taken again by the next acquisition.
CREATE TABLE mail_build_slots (
    tenant BIGINT NOT NULL,
    project BIGINT NOT NULL,
    slot TEXT NOT NULL,
    agent BIGINT NOT NULL,
    exclusive BIGINT NOT NULL,
    acquired_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL,
    released_at BIGINT,
    PRIMARY KEY (tenant, project, slot, agent)
);
CREATE INDEX mail_build_slots_active ON mail_build_slots (tenant, project, slot, expires_at) WHERE released_at IS NULL;

-- A product is several projects that belong together, for those who look through all of them at once.
CREATE TABLE mail_products (
    product {id},
    tenant BIGINT NOT NULL,
    key TEXT NOT NULL,
    name TEXT NOT NULL,
    created_at BIGINT NOT NULL
);
CREATE UNIQUE INDEX mail_products_by_key ON mail_products (tenant, key);

CREATE TABLE mail_product_projects (
    tenant BIGINT NOT NULL,
    product BIGINT NOT NULL,
    project BIGINT NOT NULL,
    linked_at BIGINT NOT NULL,
    PRIMARY KEY (tenant, product, project)
);
