-- Reservations that ended long ago, for the sweep that removes them.
CREATE INDEX mail_reservations_over ON mail_reservations (expires_at);
