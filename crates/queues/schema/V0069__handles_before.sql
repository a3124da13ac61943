-- A receive that takes a message and finds no room for it in its answer gives it back, with the handle that was good before.
ALTER TABLE flights ADD COLUMN token_before BYTEA;
