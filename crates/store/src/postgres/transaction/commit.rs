//! How a transaction ends, and what becomes of its connection.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use deadpool_postgres::Object;
use futures_util::future::join;
use tokio::time::timeout;
use waybill_kernel::{Error, Result};

use super::{Transaction, ask, begun, prepare};
use crate::Value;
use crate::postgres::conclusion::Conclusion;
use crate::postgres::failure::{self, Failure};
use crate::stored::{self, Added};
use crate::tx::Otherwise;

impl Transaction {
    /// Answers with what it has added to what is stored.
    pub(in crate::postgres) async fn commit(mut self) -> std::result::Result<Vec<Added>, Failure> {
        let added = stored::merged(&self.added);
        if self.failure.is_none() && self.count(&added).await.is_err() {
            self.failure.get_or_insert_with(failure::silent);
        }
        // A test steps in between, as another server may.
        if self.failure.is_none() && self.gate.is_some() && self.send_conclusion().await.is_err() {
            self.failure.get_or_insert_with(failure::silent);
        }
        if let Some(failure) = self.failure.take() {
            // Also when the operation swallowed an error: the server would answer COMMIT with a rollback.
            return Err(self.abandon(failure).await);
        }
        let last = self.conclusion.take();
        if self.begin.is_some() && last.is_none() {
            self.give_back();
            return Ok(added);
        }
        self.pass_gate().await;
        let begin = self.begin.take();
        let Some(client) = &self.client else { return Ok(added) };
        let committed = match &last {
            Some(last) => commit_after(client, begin, last, self.patience).await,
            None => match answered(self.patience, client.batch_execute("COMMIT")).await {
                Ok(committed) => committed.map_err(|error| failure::of_commit(&error)),
                Err(silence) => Err(silence),
            },
        };
        if let Err(failure) = committed {
            return Err(self.abandon(failure).await);
        }
        self.give_back();
        Ok(added)
    }

    /// Into the last statement, which goes with COMMIT. Work for several tenants, which is nobody's to wait for, counts each
    /// by a statement of its own.
    async fn count(&mut self, added: &[Added]) -> Result<()> {
        let Some((tenant, ..)) = added.first() else { return Ok(()) };
        let sql = stored::ADD.postgres;
        let params = |(_, kind, bytes): &Added| vec![Value::from(kind.as_str()), Value::from(*bytes)];
        if added.iter().any(|(other, ..)| other != tenant) {
            for one in added {
                self.execute(sql, Some(one.0), &params(one)).await?;
            }
            return Ok(());
        }
        let statements: Vec<crate::Statement<'_>> = added.iter().map(|one| (sql, params(one))).collect();
        if self.conclusion.as_mut().is_some_and(|last| last.take_in(&self.statements.combined, *tenant, &statements)) {
            return Ok(());
        }
        let nothing: Otherwise = || Error::internal("nothing is demanded");
        if !self.conclude(Some(*tenant), &statements, &[], nothing).await? {
            self.execute_all(Some(*tenant), &statements).await?;
        }
        Ok(())
    }

    /// What the operation's error means, with what the database said about it.
    pub(in crate::postgres) async fn roll_back(mut self, error: Error) -> Failure {
        let failure = self.failure.take().unwrap_or(Failure::Final(error));
        self.abandon(failure).await
    }

    /// What the server has refused leaves its connection as good as it was, and others wait for one: a new one would cost them a
    /// login and every statement's preparation, and refusals are most frequent where many want the same rows.
    async fn abandon(mut self, failure: Failure) -> Failure {
        let Some(client) = &self.client else { return failure };
        let is_answered = matches!(failure, Failure::Final(_) | Failure::Again(_));
        let rolled_back =
            async || timeout(self.patience, client.batch_execute("ROLLBACK")).await.is_ok_and(|sent| sent.is_ok());
        if is_answered && (self.begin.is_some() || rolled_back().await) {
            self.give_back();
        }
        failure
    }
}

/// What was sent with COMMIT, or that nobody knows.
async fn answered<T>(patience: Duration, sent: impl Future<Output = T>) -> std::result::Result<T, Failure> {
    timeout(patience, sent).await.map_err(|_| failure::unknown("COMMIT was sent and nothing came back"))
}

/// The statement and COMMIT in one round trip. An error of the server is its last word: after it there is nothing that
/// COMMIT could keep. Silence is not: both were sent.
async fn commit_after(
    client: &Object,
    begin: Option<String>,
    last: &Conclusion,
    patience: Duration,
) -> std::result::Result<(), Failure> {
    let params = last.params();
    let statement = timeout(patience, prepare(client, &last.sql, last.tenant, &params)).await;
    let statement = statement.map_err(|_| failure::silent())?.map_err(|error| last.failure(&error))?;
    let mut written = std::pin::pin!(begun(client, begin, ask(client, &statement, last.tenant, &params)));
    // It is sent by being polled. If it cannot be, COMMIT must not be sent without it.
    let sent = poll_fn(|context| Poll::Ready(written.as_mut().poll(context))).await;
    let committed = client.batch_execute("COMMIT");
    let (written, committed) = match sent {
        Poll::Ready(Err(error)) => return Err(last.failure(&error)),
        Poll::Ready(written) => (written, answered(patience, committed).await?),
        Poll::Pending => answered(patience, join(written, committed)).await?,
    };
    match written {
        Err(error) if failure::is_last_word(&error) => Err(last.failure(&error)),
        Err(error) => Err(failure::of_commit(&error)),
        Ok(_) => committed.map_err(|error| failure::of_commit(&error)),
    }
}
