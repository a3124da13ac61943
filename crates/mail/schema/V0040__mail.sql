-- A project is a repository that agents work in. `human_key` is its absolute path as people know it, `slug` what it is
-- called in paths: two paths with the same slug get different ones (rules/projects.rs). `digest` is SHA-256 of `human_key`,
-- which may be longer than an index takes.
CREATE TABLE mail_projects (
    project {id},
    tenant BIGINT NOT NULL,
    slug TEXT NOT NULL,
    human_key TEXT NOT NULL,
    digest BYTEA NOT NULL,
    created_at BIGINT NOT NULL
);
CREATE UNIQUE INDEX mail_projects_by_slug ON mail_projects (tenant, slug);
CREATE UNIQUE INDEX mail_projects_by_key ON mail_projects (tenant, digest);

-- An agent of a project. `name_key` is its name in small letters, under which it is found. `principal` registered it and
-- acts for it; others show the token, of which `token` is the SHA-256. `retired_at` is set while nobody may write to it.
CREATE TABLE mail_agents (
    agent {id},
    tenant BIGINT NOT NULL,
    project BIGINT NOT NULL,
    name TEXT NOT NULL,
    name_key TEXT NOT NULL,
    program TEXT NOT NULL,
    model TEXT NOT NULL,
    task TEXT NOT NULL,
    policy TEXT NOT NULL,
    attachments_policy TEXT NOT NULL,
    reaper_exempt BIGINT NOT NULL DEFAULT 0,
    principal TEXT NOT NULL,
    token BYTEA NOT NULL,
    created_at BIGINT NOT NULL,
    active_at BIGINT NOT NULL,
    retired_at BIGINT
);
CREATE UNIQUE INDEX mail_agents_by_name ON mail_agents (tenant, project, name_key);
CREATE INDEX mail_agents_by_activity ON mail_agents (tenant, project, active_at, agent);
-- Which agents are the caller's: a message is shown to its parties.
CREATE INDEX mail_agents_by_principal ON mail_agents (tenant, principal, agent);

-- Written once and never changed, in the project of its sender. `names` is {"to", "cc", "bcc"} with the names as they are
-- shown, `attachments` a list without contents. `reply_to` is the message it answers; `intro` is 1 for a request for
-- contact, which opens nothing.
CREATE TABLE mail_messages (
    message {id},
    tenant BIGINT NOT NULL,
    project BIGINT NOT NULL,
    sender BIGINT NOT NULL,
    sender_name TEXT NOT NULL,
    thread TEXT,
    reply_to BIGINT,
    subject TEXT NOT NULL,
    body TEXT NOT NULL,
    importance TEXT NOT NULL,
    ack_required BIGINT NOT NULL,
    intro BIGINT NOT NULL DEFAULT 0,
    names TEXT NOT NULL,
    attachments TEXT,
    created_at BIGINT NOT NULL
);
CREATE INDEX mail_messages_of_project ON mail_messages (tenant, project, message);
CREATE INDEX mail_messages_of_thread ON mail_messages (tenant, project, thread, message) WHERE thread IS NOT NULL;
CREATE INDEX mail_outbox ON mail_messages (tenant, sender, created_at, message);

-- One row per message and agent. `sender`, `urgent` (high or urgent), `ack_required`, `intro` and `created_at` are the message's,
-- here because inboxes are read by them: each list has an index of its own, so that none walks over what it does not show.
CREATE TABLE mail_recipients (
    tenant BIGINT NOT NULL,
    message BIGINT NOT NULL,
    agent BIGINT NOT NULL,
    kind TEXT NOT NULL,
    sender BIGINT NOT NULL,
    urgent BIGINT NOT NULL,
    ack_required BIGINT NOT NULL,
    intro BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    read_at BIGINT,
    ack_at BIGINT,
    PRIMARY KEY (tenant, message, agent)
);
CREATE INDEX mail_inbox ON mail_recipients (tenant, agent, created_at, message);
CREATE INDEX mail_inbox_unread ON mail_recipients (tenant, agent, created_at, message) WHERE read_at IS NULL;
CREATE INDEX mail_inbox_urgent ON mail_recipients (tenant, agent, created_at, message) WHERE urgent = 1;
CREATE INDEX mail_inbox_urgent_unread ON mail_recipients (tenant, agent, created_at, message)
    WHERE urgent = 1 AND read_at IS NULL;
CREATE INDEX mail_inbox_ack ON mail_recipients (tenant, agent, created_at, message)
    WHERE ack_required = 1 AND ack_at IS NULL;
-- Who wrote to whom lately.
CREATE INDEX mail_recipients_between ON mail_recipients (tenant, sender, agent, created_at) WHERE intro = 0;

-- What came with a message, in the order given.
CREATE TABLE mail_attachments (
    attachment {id},
    tenant BIGINT NOT NULL,
    message BIGINT NOT NULL,
    position BIGINT NOT NULL,
    name TEXT NOT NULL,
    media_type TEXT NOT NULL,
    sha256 BYTEA NOT NULL,
    content BYTEA NOT NULL
);
CREATE UNIQUE INDEX mail_attachments_of_message ON mail_attachments (tenant, message, position);

-- Who asked whom for contact. `status` is pending, approved or blocked; without `expires_at` it stays.
CREATE TABLE mail_contacts (
    tenant BIGINT NOT NULL,
    from_agent BIGINT NOT NULL,
    to_agent BIGINT NOT NULL,
    status TEXT NOT NULL,
    reason TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    expires_at BIGINT,
    PRIMARY KEY (tenant, from_agent, to_agent)
);
CREATE INDEX mail_contacts_to ON mail_contacts (tenant, to_agent, from_agent);

-- Deliveries in the order of their commits, for those who follow an inbox by cursor. Rows go when they are old
-- (sweeps.rs), the newest one excepted: SQLite would give its number out again.
CREATE TABLE mail_inbox_events (
    seq {id},
    tenant BIGINT NOT NULL,
    agent BIGINT NOT NULL,
    message BIGINT NOT NULL,
    at BIGINT NOT NULL,
    xact BIGINT NOT NULL DEFAULT {xact}
);
CREATE INDEX mail_inbox_events_of_agent ON mail_inbox_events (tenant, agent, xact, seq);

-- Up to where an agent's deliveries were forgotten: cursors from before are refused.
CREATE TABLE mail_forgotten_events (
    tenant BIGINT NOT NULL,
    agent BIGINT NOT NULL,
    xact BIGINT NOT NULL,
    seq BIGINT NOT NULL,
    PRIMARY KEY (tenant, agent)
);

-- Idempotency keys of the last 24 hours, in the transaction of what was done under them. `answer` is what a repeated call
-- is answered from, in the words of its tool.
CREATE TABLE mail_keys (
    tenant BIGINT NOT NULL,
    project BIGINT NOT NULL,
    agent BIGINT NOT NULL,
    tool TEXT NOT NULL,
    key TEXT NOT NULL,
    fingerprint BYTEA NOT NULL,
    answer TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (tenant, project, agent, tool, key)
);
CREATE INDEX mail_keys_by_age ON mail_keys (created_at);

-- What the archive has to write, in the transaction of what it is about: project, agent, message or reservation `ref`. `state` is
-- waiting, skipped or failed; a row goes when it is written. `xact` and `row` give the order of commits.
CREATE TABLE mail_archive_rows (
    row {id},
    tenant BIGINT NOT NULL,
    project BIGINT NOT NULL,
    kind TEXT NOT NULL,
    ref BIGINT NOT NULL,
    at BIGINT NOT NULL,
    state TEXT NOT NULL,
    attempts BIGINT NOT NULL DEFAULT 0,
    next_at BIGINT NOT NULL,
    xact BIGINT NOT NULL DEFAULT {xact}
);
CREATE INDEX mail_archive_rows_of_project ON mail_archive_rows (tenant, project, xact, row);
CREATE INDEX mail_archive_rows_due ON mail_archive_rows (state, next_at, row);
CREATE INDEX mail_archive_rows_of_tenant ON mail_archive_rows (tenant, state);

-- How often the state of an agent has changed that the archive derives from rows: what it has read and acknowledged, its policy,
-- its contacts, its reservations. One counter per agent, since all of a project's would meet on one row; the project's is their
-- sum. `archived` is the count that the archive has written.
CREATE TABLE mail_changes (
    tenant BIGINT NOT NULL,
    project BIGINT NOT NULL,
    agent BIGINT NOT NULL,
    changes BIGINT NOT NULL,
    archived BIGINT NOT NULL DEFAULT 0,
    changed_at BIGINT NOT NULL,
    PRIMARY KEY (tenant, project, agent)
);
CREATE INDEX mail_changes_due ON mail_changes (changed_at) WHERE changes > archived;

-- Written by health_check: the only proof that a write would be kept.
CREATE TABLE mail_probes (
    tenant BIGINT NOT NULL,
    probed_at BIGINT NOT NULL,
    PRIMARY KEY (tenant)
);
