-- Events of meshes that concern the tenant and not only those who are connected, in the order of feeds: (xact, seq). What the event
-- says is in mesh_events.
CREATE TABLE mesh_audit (
    seq {id},
    tenant BIGINT NOT NULL,
    event_id BYTEA NOT NULL,
    mesh_id BYTEA NOT NULL,
    event_seq BIGINT NOT NULL,
    kind TEXT NOT NULL,
    at BIGINT NOT NULL,
    xact BIGINT NOT NULL DEFAULT {xact}
);
CREATE UNIQUE INDEX mesh_audit_by_id ON mesh_audit (tenant, event_id);
CREATE INDEX mesh_audit_in_order ON mesh_audit (xact, seq);
CREATE INDEX mesh_audit_old ON mesh_audit (at);
