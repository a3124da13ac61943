//! The product's database behind its back, in either engine's words. Copies that cut corners of durability: whatever is lost
//! is made again.

use std::path::PathBuf;

use anyhow::{Context, Result};
use tokio_postgres::{Client, SimpleQueryMessage};

pub enum Database {
    Sqlite(PathBuf),
    Postgres(Client),
}

impl Database {
    /// Bytes from a UUID or from hexadecimal digits.
    pub fn blob(&self, id: &str) -> String {
        let digits: String = id.chars().filter(char::is_ascii_hexdigit).collect();
        match self {
            Self::Sqlite(_) => format!("x'{digits}'"),
            Self::Postgres(_) => format!("'\\x{digits}'::bytea"),
        }
    }

    /// The digits of bytes, in capitals.
    pub fn hex(&self, column: &str) -> String {
        match self {
            Self::Sqlite(_) => format!("hex({column})"),
            Self::Postgres(_) => format!("upper(encode({column}, 'hex'))"),
        }
    }

    /// Ids of 16 bytes, one after the other, that begin with each of these and end with the number of the copy, `n.i`.
    pub fn ids(&self, firsts: &[u64]) -> String {
        match self {
            Self::Sqlite(_) => {
                let numbers: String = firsts.iter().map(|first| format!(", {first}, n.i")).collect();
                format!("unhex(printf('{}'{numbers}))", "%016x%016x".repeat(firsts.len()))
            }
            Self::Postgres(_) => {
                let ids = firsts.iter().map(|first| format!(" || int8send({first}) || int8send(n.i::bigint)"));
                format!("''::bytea{}", ids.collect::<String>())
            }
        }
    }

    pub async fn columns(&self, table: &str) -> Result<Vec<String>> {
        let sql = match self {
            Self::Sqlite(_) => format!("SELECT name FROM pragma_table_info('{table}')"),
            Self::Postgres(_) => format!(
                "SELECT attname FROM pg_attribute WHERE attrelid = '{table}'::regclass AND attnum > 0 AND NOT attisdropped"
            ),
        };
        Ok(self.texts(&sql).await?.into_iter().flatten().collect())
    }

    /// The rows of a small query whose columns are all texts.
    pub async fn texts(&self, sql: &str) -> Result<Vec<Vec<String>>> {
        match self {
            Self::Sqlite(path) => {
                let connection = rusqlite::Connection::open(path)?;
                let mut statement = connection.prepare(sql)?;
                let columns = statement.column_count();
                let rows = statement.query_map([], |row| (0..columns).map(|column| row.get(column)).collect())?;
                Ok(rows.collect::<rusqlite::Result<_>>()?)
            }
            Self::Postgres(client) => {
                let rows = client.simple_query(sql).await.with_context(|| sql.to_owned())?;
                let rows = rows.iter().filter_map(|message| match message {
                    SimpleQueryMessage::Row(row) => Some(row),
                    _ => None,
                });
                let texts = |row: &tokio_postgres::SimpleQueryRow| {
                    (0..row.len()).map(|column| row.get(column).unwrap_or_default().to_owned()).collect()
                };
                Ok(rows.map(texts).collect())
            }
        }
    }

    /// All of it, and then everything on the disk: what is still to be written would be written during the measurement.
    pub async fn run(&self, statements: Vec<String>) -> Result<()> {
        match self {
            Self::Sqlite(path) => {
                let path = path.clone();
                tokio::task::spawn_blocking(move || run_sqlite(path, &statements)).await?
            }
            Self::Postgres(client) => {
                client.batch_execute("SET synchronous_commit = off; BEGIN").await?;
                for statement in &statements {
                    client.batch_execute(statement).await.with_context(|| statement.clone())?;
                }
                client.batch_execute("COMMIT").await?;
                // What autovacuum would do a minute later, in the middle of a slice.
                client.batch_execute("VACUUM ANALYZE").await?;
                Ok(client.batch_execute("CHECKPOINT").await?)
            }
        }
    }
}

fn run_sqlite(path: PathBuf, statements: &[String]) -> Result<()> {
    let connection = rusqlite::Connection::open(&path)?;
    for (name, value) in [("journal_mode", "OFF"), ("synchronous", "OFF"), ("cache_size", "-262144")] {
        connection.pragma_update(None, name, value)?;
    }
    connection.execute_batch("BEGIN")?;
    for statement in statements {
        connection.execute_batch(statement).with_context(|| statement.clone())?;
    }
    connection.execute_batch("COMMIT")?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.close().map_err(|(_, error)| error)?;
    Ok(std::fs::File::open(&path)?.sync_all()?)
}
