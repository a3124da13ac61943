-- What the archive derives from rows that have changed: it looks for what an agent has read, acknowledged and released since it looked
-- last. `archived_until` is that time, a little before the look, since a transaction that was open then has an older one.
ALTER TABLE mail_changes ADD COLUMN archived_until BIGINT NOT NULL DEFAULT 0;
CREATE INDEX mail_recipients_read ON mail_recipients (tenant, agent, read_at, message) WHERE read_at IS NOT NULL;
CREATE INDEX mail_recipients_acked ON mail_recipients (tenant, agent, ack_at, message) WHERE ack_at IS NOT NULL;
CREATE INDEX mail_reservations_released ON mail_reservations (tenant, agent, released_at) WHERE released_at IS NOT NULL;
CREATE INDEX mail_build_slots_of_agent ON mail_build_slots (tenant, agent, slot);
