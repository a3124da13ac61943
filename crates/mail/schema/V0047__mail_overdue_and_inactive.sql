-- `escalated_at` is when a wanted acknowledgement was found to be overdue, so that each is told once. The archive does not have it: a database
-- that is made again from there tells once more.
ALTER TABLE mail_recipients ADD COLUMN escalated_at BIGINT;
CREATE INDEX mail_recipients_overdue ON mail_recipients (created_at)
    WHERE ack_required = 1 AND ack_at IS NULL AND escalated_at IS NULL;
-- Agents that may be retired, by what they did last.
CREATE INDEX mail_agents_idle ON mail_agents (active_at) WHERE retired_at IS NULL AND reaper_exempt = 0;
