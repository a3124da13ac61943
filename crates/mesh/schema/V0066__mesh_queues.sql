-- Queues of the tenant that members may send to. By name: a queue that is made anew under its name is the same to the mesh.
CREATE TABLE mesh_queues (
    tenant BIGINT NOT NULL,
    mesh_id BYTEA NOT NULL,
    queue TEXT NOT NULL,
    allowed_by BYTEA NOT NULL,
    allowed_at BIGINT NOT NULL,
    PRIMARY KEY (tenant, mesh_id, queue)
);
