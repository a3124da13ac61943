-- `state` is arriving until all of its bytes are here, then stored. `topic` or `recipient` say who may have it; neither, and every
-- member may. `meta` is for the receivers, who alone can read it on an encrypted mesh.
CREATE TABLE mesh_files (
    tenant BIGINT NOT NULL,
    mesh_id BYTEA NOT NULL,
    file_id BYTEA NOT NULL,
    owner BYTEA NOT NULL,
    topic TEXT,
    recipient BYTEA,
    meta TEXT NOT NULL,
    size_bytes BIGINT NOT NULL,
    received_bytes BIGINT NOT NULL,
    chunks BIGINT NOT NULL,
    state TEXT NOT NULL,
    persistent BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    expires_at BIGINT,
    PRIMARY KEY (tenant, mesh_id, file_id)
);
CREATE INDEX mesh_files_over ON mesh_files (expires_at) WHERE expires_at IS NOT NULL;

CREATE TABLE mesh_file_chunks (
    number {id},
    tenant BIGINT NOT NULL,
    mesh_id BYTEA NOT NULL,
    file_id BYTEA NOT NULL,
    position BIGINT NOT NULL,
    bytes BYTEA NOT NULL
);
CREATE UNIQUE INDEX mesh_file_chunks_by_position ON mesh_file_chunks (tenant, mesh_id, file_id, position);
