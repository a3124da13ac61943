-- A key that signs requests instead of coming with them has its secret here, in a box that the server's own key opens:
-- whoever checks a signature needs the secret itself. Such a key has an empty hash and no digest.
ALTER TABLE api_keys ADD COLUMN secret BYTEA;
