//! The numbers that are given out after an import begin behind those that came with it.

use waybill_kernel::{Mode, Result};
use waybill_store::{Ctx, Sql, Tx, Work};

/// Far more than anybody has sent, and as many again before numbers stop being exact in JSON.
pub const NUMBER_MAX: i64 = 1 << 52;

/// The highest number of each kind that is about to be imported; 0 for none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Highest {
    pub project: i64,
    pub agent: i64,
    pub message: i64,
    pub reservation: i64,
    pub product: i64,
}

/// Before anything is written: a server that came upon a number which was imported could send nothing.
pub struct Reserve(pub Highest);

/// SQLite goes on behind the highest that there is.
const SEQUENCES: Sql = Sql { sqlite: "no", postgres: "yes" };

macro_rules! moved {
    ($sequence:literal) => {
        concat!("SELECT setval('", $sequence, "', GREATEST($1, (SELECT last_value FROM ", $sequence, ")))")
    };
}

impl Work for Reserve {
    type Output = ();

    fn mode(&self) -> Mode {
        Mode::Write
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<()> {
        // With the table locked nobody draws a number between the look and the move.
        const STEPS: [(&str, &str); 5] = [
            ("LOCK TABLE mail_projects IN SHARE ROW EXCLUSIVE MODE", moved!("mail_projects_project_seq")),
            ("LOCK TABLE mail_agents IN SHARE ROW EXCLUSIVE MODE", moved!("mail_agents_agent_seq")),
            ("LOCK TABLE mail_messages IN SHARE ROW EXCLUSIVE MODE", moved!("mail_messages_message_seq")),
            ("LOCK TABLE mail_reservations IN SHARE ROW EXCLUSIVE MODE", moved!("mail_reservations_reservation_seq")),
            ("LOCK TABLE mail_products IN SHARE ROW EXCLUSIVE MODE", moved!("mail_products_product_seq")),
        ];
        if tx.text(SEQUENCES) == SEQUENCES.sqlite {
            return Ok(());
        }
        let Highest { project, agent, message, reservation, product } = self.0;
        for ((lock, set), highest) in STEPS.into_iter().zip([project, agent, message, reservation, product]) {
            if highest > 0 {
                tx.execute(lock, &[]).await?;
                tx.query(set, &[highest.min(NUMBER_MAX).into()]).await?;
            }
        }
        Ok(())
    }
}

/// For one whose own number is taken: behind all that there are and all that are to come, so that it takes nobody else's. None where the
/// database has a sequence, which has been moved behind them.
pub(super) async fn free(tx: &mut Tx<'_>, highest: &'static str, coming: i64) -> Result<Option<i64>> {
    if tx.text(SEQUENCES) != SEQUENCES.sqlite {
        return Ok(None);
    }
    let row = tx.query_opt(highest, &[]).await?;
    let there = row.map(|row| row.int_opt(0)).transpose()?.flatten().unwrap_or(0);
    Ok(Some(there.max(coming) + 1))
}
