-- What is imported keeps its numbers; those that are given out afterwards begin behind them (import/numbers.rs).
{postgres} GRANT SELECT, UPDATE ON SEQUENCE mail_projects_project_seq, mail_agents_agent_seq, mail_messages_message_seq,
    mail_reservations_reservation_seq, mail_products_product_seq TO waybill_system;
