-- A write that must find a row calls this when it has found none, and nothing of its transaction is kept. The code is ours:
-- PostgreSQL and its extensions raise nothing of the class WB, so no other failure is taken for it. Volatile, so that it is
-- called when it is reached and not while the statement is planned.
{postgres} CREATE FUNCTION waybill_nothing_written() RETURNS BIGINT LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RAISE EXCEPTION 'a write that was demanded found no row' USING ERRCODE = 'WB001';
END
$$;
{postgres} GRANT EXECUTE ON FUNCTION waybill_nothing_written() TO waybill_app, waybill_system;
