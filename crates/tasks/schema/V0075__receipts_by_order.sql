-- Nobody looks a receipt up by `seq` alone: it is found by its id, or in the order (xact, seq), which has an index of its own.
-- The index of the primary key costs PostgreSQL an entry for every receipt, and another when its obligation ends. SQLite's is the
-- table itself.
{postgres} ALTER TABLE receipts DROP CONSTRAINT receipts_pkey;
