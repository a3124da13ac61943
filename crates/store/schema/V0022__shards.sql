-- Which database goes by which name beside home: a name belongs to one database for ever. Kept in home.
CREATE TABLE shards (
    name TEXT NOT NULL PRIMARY KEY,
    database_id BYTEA NOT NULL
);
CREATE UNIQUE INDEX shards_by_database ON shards (database_id);
