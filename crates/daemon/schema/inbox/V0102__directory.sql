-- Who is in the mesh, as far as this member knows: kept so that messages can be accepted without a network.
CREATE TABLE directory_members (
    member TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    ed25519 TEXT NOT NULL,
    x25519 TEXT NOT NULL,
    x25519_signature TEXT NOT NULL,
    is_owner BIGINT NOT NULL,
    -- active, revoked or gone: a member that ended stays known, so that its messages keep their sender.
    state TEXT NOT NULL
);
CREATE INDEX directory_members_by_key ON directory_members (ed25519);

-- Keys that members had before a rotation: messages signed for by them may still be on their way.
CREATE TABLE directory_former_keys (
    ed25519 TEXT PRIMARY KEY,
    member TEXT NOT NULL,
    x25519 TEXT NOT NULL,
    rotated_at BIGINT NOT NULL
);

CREATE TABLE directory_topics (
    topic TEXT PRIMARY KEY,
    subscribed BIGINT NOT NULL,
    -- The epoch to post under; NULL while none is known.
    epoch BIGINT
);

-- Every epoch key that was ever given to this member: older messages stay readable.
CREATE TABLE directory_epoch_keys (
    topic TEXT NOT NULL,
    epoch BIGINT NOT NULL,
    secret BYTEA NOT NULL,
    PRIMARY KEY (topic, epoch)
);
