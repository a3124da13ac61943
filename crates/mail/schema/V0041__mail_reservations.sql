-- Who is working on which files. `path` is a path or pattern in its normal form (rules/paths.rs); `head` is its first part where
-- that is the same for all it can mean, else empty. One is active until it is released or `expires_at` has come: what is over
-- lies outside every range that is looked through, so history costs nothing.
CREATE TABLE mail_reservations (
    reservation {id},
    tenant BIGINT NOT NULL,
    project BIGINT NOT NULL,
    agent BIGINT NOT NULL,
    path TEXT NOT NULL,
    head TEXT NOT NULL,
    exclusive BIGINT NOT NULL,
    reason TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL,
    released_at BIGINT
);
CREATE INDEX mail_reservations_of_project ON mail_reservations (tenant, project, reservation);
CREATE INDEX mail_reservations_by_head ON mail_reservations (tenant, project, head, expires_at) WHERE released_at IS NULL;
CREATE INDEX mail_reservations_by_expiry ON mail_reservations (tenant, project, expires_at) WHERE released_at IS NULL;
CREATE INDEX mail_reservations_of_agent ON mail_reservations (tenant, agent, expires_at) WHERE released_at IS NULL;
