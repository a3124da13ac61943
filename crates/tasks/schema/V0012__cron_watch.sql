-- For cron: the longest that its expression leaves between two runs, for as long as two runs do not show it; and when it was
-- last resumed, because a pause is no gap.
ALTER TABLE schedule_watch ADD COLUMN gap_us BIGINT;
ALTER TABLE schedule_watch ADD COLUMN resumed_at BIGINT;
