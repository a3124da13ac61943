-- When an agent came in from an archive. It keeps the time at which it was last active elsewhere, and is not retired for that: the sweep
-- counts from here.
ALTER TABLE mail_agents ADD COLUMN imported_at BIGINT;

-- `changed_at` is since when there are changes that the archive has not written. The index goes from project to project and within one to
-- what waits longest, so that one that cannot be written stands in nobody's way.
DROP INDEX mail_changes_due;
CREATE INDEX mail_changes_due ON mail_changes (tenant, project, changed_at) WHERE changes > archived;
