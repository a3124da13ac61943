//! Which messages fit, newest first.
//!
//! Everything but dates is decided by the index: the project, the parties, the sender, the thread and the importance are marks beside
//! the words, so a search without words is one for marks. What somebody may not find is not among what is counted
//! against the limit.

use waybill_kernel::{Error, Result, Time};
use waybill_store::{Ctx, Row, Sql, Tx, Value};

use crate::acting::{Agent, Project};
use crate::inbox::{MESSAGE_COLUMNS, MessageView, SENT, message_columns};
use crate::rules::addresses::Kind;
use crate::rules::query::Expr;
use crate::rules::terms::Space;

/// What is looked for in one project.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) home: Project,
    pub(crate) space: Space,
    /// The mark of those who may find it.
    pub(crate) party: String,
    /// Who looks, where the mail of one agent is wanted.
    pub(crate) agent: Option<i64>,
    pub(crate) expr: Option<Expr>,
    pub(crate) sender: Option<i64>,
    pub(crate) thread: Option<String>,
    /// Any of them; empty for all.
    pub(crate) importances: Vec<&'static str>,
    pub(crate) since: Option<Time>,
    /// Not at this time and not later.
    pub(crate) until: Option<Time>,
}

/// Where a message stands by relevance: what has all that is looked for in its subject comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Tier {
    Subject,
    Elsewhere,
}

impl Wanted {
    /// For all agents of the caller, or for one that it may act for: whoever shows a token looks with the marks of the principal
    /// that registered the agent, and has none of its own.
    pub(crate) fn new(ctx: &Ctx<'_>, home: &Project, agent: Option<&Agent>) -> Self {
        let space = Space { tenant: ctx.caller.tenant, project: home.id };
        let party = match agent {
            Some(agent) => space.party(&agent.principal),
            None if ctx.caller.sees_all_owners() => space.everybody(),
            None => space.party(&ctx.caller.principal.to_string()),
        };
        let home = home.clone();
        Self {
            home,
            space,
            party,
            agent: agent.map(|agent| agent.id),
            expr: None,
            sender: None,
            thread: None,
            importances: Vec::new(),
            since: None,
            until: None,
        }
    }

    /// Marks beside the party's, all of which must be there: in each list, one of its marks.
    fn marks(&self) -> Vec<Vec<String>> {
        let space = self.space;
        let mut marks = Vec::new();
        marks.extend(self.sender.map(|sender| vec![space.sender(sender)]));
        marks.extend(self.thread.as_ref().map(|thread| vec![space.thread(thread)]));
        if !self.importances.is_empty() {
            marks.push(self.importances.iter().map(|importance| space.importance(importance)).collect());
        }
        marks
    }

    fn fts5(&self, tier: Option<Tier>) -> String {
        let write = |expr: &Expr| expr.fts5(self.space, &self.party);
        let mut parts = vec![format!("\"{}\"", self.party)];
        for any in self.marks() {
            let any: Vec<String> = any.iter().map(|mark| format!("\"{mark}\"")).collect();
            parts.push(format!("({})", any.join(" OR ")));
        }
        let subject = self.expr.as_ref().map(|expr| write(&expr.in_subject()));
        match tier {
            Some(Tier::Subject) => parts.extend(subject.clone()),
            _ => parts.extend(self.expr.as_ref().map(write)),
        }
        let all = format!("({})", parts.join(" AND "));
        match (tier, subject) {
            (Some(Tier::Elsewhere), Some(subject)) => format!("{all} NOT ({subject})"),
            _ => all,
        }
    }

    /// Without the party, which is a parameter of its own, unless nothing else is asked for: an empty query is worth a notice to
    /// PostgreSQL.
    fn tsquery(&self, tier: Option<Tier>) -> String {
        let write = |expr: &Expr| expr.tsquery(self.space);
        let mut parts = Vec::new();
        for any in self.marks() {
            let any: Vec<String> = any.iter().map(|mark| format!("'{mark}'")).collect();
            parts.push(format!("({})", any.join(" | ")));
        }
        if let Some(expr) = &self.expr {
            match tier {
                None => parts.push(write(expr)),
                Some(Tier::Subject) => parts.push(write(&expr.in_subject())),
                Some(Tier::Elsewhere) => parts.push(format!("{} & !({})", write(expr), write(&expr.in_subject()))),
            }
        }
        if parts.is_empty() { format!("'{}'", self.party) } else { parts.join(" & ") }
    }

    /// At most `limit` messages below this number, newest first. Of each body come so many characters. Where one agent looks,
    /// what its principal's other agents have is among them: it tells where a page ends.
    pub(crate) async fn look(
        &self,
        ctx: &Ctx<'_>,
        tx: &mut Tx<'_>,
        tier: Option<Tier>,
        below: i64,
        limit: i64,
        body_chars: i64,
    ) -> Result<Vec<Found>> {
        macro_rules! found {
            ($from:literal, $order:literal) => {
                concat!(
                    "SELECT ",
                    message_columns!(),
                    // The sender and its principal, and the first list that the reader is on: the agent that looks, or any of the
                    // caller's.
                    ", s.principal, m.sender, (SELECT max(r.kind) FROM mail_recipients r JOIN mail_agents b \
                     ON b.tenant = $1 AND b.agent = r.agent \
                     WHERE r.tenant = $1 AND r.message = m.message \
                     AND (b.agent = $10 OR ($10 IS NULL AND b.principal = $9))), \
                     substr(m.body, 1, CAST($8 AS INTEGER)), length(m.body) FROM ",
                    $from,
                    " JOIN mail_agents s ON s.tenant = $1 AND s.agent = m.sender ",
                    $order
                )
            };
        }
        const FIND: Sql = Sql {
            sqlite: found!(
                "mail_fts f CROSS JOIN mail_messages m ON m.tenant = $1 AND m.message = f.rowid",
                "WHERE f.mail_fts MATCH $2 AND $3 = '' AND f.rowid < $4 AND m.created_at >= $5 AND m.created_at < $6 \
                 ORDER BY f.rowid DESC LIMIT $7"
            ),
            postgres: found!(
                "mail_find($2, $3, $4, $5, $6, $7) f JOIN mail_messages m ON m.tenant = $1 AND m.message = f.found",
                "ORDER BY m.message DESC"
            ),
        };
        let sql = tx.text(FIND);
        let (first, second) = if sql == FIND.sqlite {
            (self.fts5(tier), String::new())
        } else {
            (format!("'{}'", self.party), self.tsquery(tier))
        };
        let reader = ctx.caller.principal.to_string();
        let params = [
            Value::from(&first),
            Value::from(&second),
            below.into(),
            self.since.unwrap_or(Time::from_micros(i64::MIN)).into(),
            self.until.unwrap_or(Time::from_micros(i64::MAX)).into(),
            limit.into(),
            body_chars.into(),
            Value::from(&reader),
            self.agent.into(),
        ];
        tx.query(sql, &params).await?.iter().map(|row| Found::read(ctx, row, self)).collect()
    }
}

/// A message that fits, as its reader may see it.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) view: MessageView,
    /// Its beginning.
    pub(crate) body: String,
    /// Of all of it, in characters.
    pub(crate) body_chars: i64,
    /// False where one agent looks and only others of its principal have the message: nobody is shown it.
    pub(crate) is_party: bool,
}

impl Found {
    /// Who sent it, and admins, are shown whom it was hidden from the others that they got it. Where one agent looks, it is that
    /// one who must have sent it.
    fn read(ctx: &Ctx<'_>, row: &Row, wanted: &Wanted) -> Result<Self> {
        let is_own = match wanted.agent {
            Some(agent) => row.int(MESSAGE_COLUMNS + 1)? == agent,
            None => ctx.caller.sees_all_owners() || row.text(MESSAGE_COLUMNS)? == ctx.caller.principal.to_string(),
        };
        let (kind, is_party) = match row.text_opt(MESSAGE_COLUMNS + 2)?.map(Kind::stored) {
            _ if is_own => (SENT, true),
            Some(kind) => (kind.as_str(), true),
            None if wanted.agent.is_some() => (Kind::To.as_str(), false),
            None => return Err(Error::internal("the index shows a message to somebody who is no party of it")),
        };
        Ok(Self {
            view: MessageView::read(row, kind, &wanted.home)?,
            body: row.text(MESSAGE_COLUMNS + 3)?.to_owned(),
            body_chars: row.int(MESSAGE_COLUMNS + 4)?,
            is_party,
        })
    }
}

#[cfg(test)]
mod tests {
    use waybill_kernel::Tenant;

    use super::*;
    use crate::rules::query::Query;

    #[test]
    fn every_match_names_the_tenant_the_project_and_the_party() {
        let space = Space { tenant: Tenant(3), project: 9 };
        let home =
            Project { id: 9, slug: "x".to_owned(), human_key: "/x".to_owned(), created_at: Time::from_micros(0) };
        let wanted = |text: &str| Wanted {
            home: home.clone(),
            space,
            party: "3p9ya".to_owned(),
            agent: None,
            expr: Query::read(text).unwrap().expr,
            sender: Some(4),
            thread: None,
            importances: vec!["high", "urgent"],
            since: None,
            until: None,
        };
        assert_eq!(
            wanted("fix OR NOT bug").fts5(None),
            "(\"3p9ya\" AND (\"3p9s4\") AND (\"3p9ihigh\" OR \"3p9iurgent\") AND (\"3p9xfix\" OR (\"3p9ya\" NOT (\"3p9xbug\"))))"
        );
        assert_eq!(wanted("").fts5(None), "(\"3p9ya\" AND (\"3p9s4\") AND (\"3p9ihigh\" OR \"3p9iurgent\"))");
        let bare = Wanted { sender: None, importances: Vec::new(), ..wanted("fix") };
        assert_eq!(bare.fts5(Some(Tier::Subject)), "(\"3p9ya\" AND subject : \"3p9xfix\")");
        assert_eq!(bare.fts5(Some(Tier::Elsewhere)), "(\"3p9ya\" AND \"3p9xfix\") NOT (subject : \"3p9xfix\")");
        assert_eq!(bare.tsquery(Some(Tier::Elsewhere)), "('3p9xfix') & !(('3p9xfix':A))");
    }
}
