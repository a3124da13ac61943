//! Whether a statement stays with its tenant, told from its text when it is first prepared.
//!
//! In a tenant's transaction `$1` is the tenant and Tx binds it. A statement that reads or writes a tenant's table without
//! comparing that table's own tenant with `$1` would reach across tenants (SQLite has no row-level security), so it is
//! refused. Each mention of a tenant's table must have a binding of its own:
//! - an INSERT gives `$1` for the column `tenant`, in each of its rows, and in each SELECT of a UNION;
//! - everything else says `alias.tenant = $1`, or `tenant = $1` in the same SELECT, UPDATE or DELETE, as a condition: behind
//!   WHERE or ON.
//!
//! # Contract
//! Lexical and strict: whatever looks like a tenant's table counts as one, so a doubtful statement is refused rather than
//! sent. A bare `tenant = $1` binds one table, not all that stand beside it.

use std::collections::HashSet;

use waybill_kernel::{Error, Result};

use crate::lexer::{Piece, pieces};

/// The names of the tables that carry a tenant, read from the migrations.
#[derive(Clone, Debug, Default)]
pub(crate) struct TenantTables(HashSet<String>);

impl TenantTables {
    pub(crate) fn new(names: impl IntoIterator<Item = String>) -> Self {
        Self(names.into_iter().collect())
    }

    pub(crate) fn check(&self, sql: &str) -> Result<()> {
        let tokens = tokens(sql);
        let scopes = scopes(&tokens);
        let mut mentions = self.mentions(&tokens, &scopes);
        bind(&tokens, &scopes, &mut mentions);
        match mentions.iter().find(|mention| !mention.bound) {
            Some(Mention { table, .. }) => {
                Err(Error::internal(format!("a statement does not bind the tenant of {table} to $1: {sql}")))
            }
            None => Ok(()),
        }
    }

    /// The words that name tables: not those before a dot, which name a table that is mentioned elsewhere.
    fn mentions<'a>(&self, tokens: &[Token<'a>], scopes: &Scopes) -> Vec<Mention<'a>> {
        let mut mentions = Vec::new();
        for (at, token) in tokens.iter().enumerate() {
            let Token::Word(word) = *token else { continue };
            if !self.0.contains(&word.to_ascii_lowercase()) || tokens.get(at + 1) == Some(&Token::Mark('.')) {
                continue;
            }
            let is_insert = at > 0 && tokens[at - 1].is("INTO");
            let bound = is_insert && inserts_the_tenant(tokens, scopes, at);
            mentions.push(Mention { table: word, alias: alias(tokens, at), scope: scopes.of[at], is_insert, bound });
        }
        mentions
    }
}

struct Mention<'a> {
    table: &'a str,
    alias: &'a str,
    scope: usize,
    is_insert: bool,
    bound: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token<'a> {
    Word(&'a str),
    Parameter(usize),
    /// A string: it is something, and neither a name nor a parameter.
    Text,
    Mark(char),
}

impl Token<'_> {
    fn is(&self, keyword: &str) -> bool {
        matches!(self, Token::Word(word) if word.eq_ignore_ascii_case(keyword))
    }

    fn is_any(&self, keywords: &[&str]) -> bool {
        keywords.iter().any(|keyword| self.is(keyword))
    }
}

fn tokens(sql: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    for piece in pieces(sql) {
        match piece {
            Piece::Code(code) => tokens_of_code(code, &mut tokens),
            Piece::Quoted(name) if name.starts_with('"') => tokens.push(Token::Word(name.trim_matches('"'))),
            Piece::Quoted(_) => tokens.push(Token::Text),
            Piece::Comment(_) => {}
        }
    }
    tokens
}

fn tokens_of_code<'a>(code: &'a str, tokens: &mut Vec<Token<'a>>) {
    let mut rest = code.trim_start();
    while let Some(first) = rest.chars().next() {
        let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == '$';
        let length = if is_part(first) { rest.find(|c| !is_part(c)).unwrap_or(rest.len()) } else { first.len_utf8() };
        let (token, after) = rest.split_at(length);
        let parameter = token.strip_prefix('$').and_then(|number| number.parse().ok());
        tokens.push(match parameter {
            Some(number) => Token::Parameter(number),
            None if is_part(first) => Token::Word(token),
            None => Token::Mark(first),
        });
        rest = after.trim_start();
    }
}

const SET_OPERATORS: &[&str] = &["UNION", "EXCEPT", "INTERSECT"];

/// Which query each token is part of. Brackets open a scope, and so does a UNION: what is compared in one half says nothing
/// about the other.
struct Scopes {
    of: Vec<usize>,
    parents: Vec<Option<usize>>,
    /// It selects, updates or deletes; brackets around conditions do not.
    is_query: Vec<bool>,
}

fn scopes(tokens: &[Token<'_>]) -> Scopes {
    let mut scopes = Scopes { of: Vec::with_capacity(tokens.len()), parents: vec![None], is_query: vec![true] };
    let mut open = vec![0];
    for token in tokens {
        let current = open.last().copied().unwrap_or(0);
        match token {
            Token::Mark('(') => open.push(scopes.enter(Some(current))),
            Token::Mark(')') if open.len() > 1 => drop(open.pop()),
            _ if token.is_any(SET_OPERATORS) => {
                let sibling = scopes.enter(scopes.parents[current]);
                if let Some(top) = open.last_mut() {
                    *top = sibling;
                }
            }
            _ if token.is_any(&["SELECT", "UPDATE", "DELETE"]) => scopes.is_query[current] = true,
            _ => {}
        }
        scopes.of.push(current);
    }
    scopes
}

impl Scopes {
    fn enter(&mut self, parent: Option<usize>) -> usize {
        self.parents.push(parent);
        self.is_query.push(false);
        self.parents.len() - 1
    }

    fn and_those_around(&self, scope: usize) -> impl Iterator<Item = usize> + '_ {
        std::iter::successors(Some(scope), |scope| self.parents[*scope])
    }

    fn query_of(&self, scope: usize) -> usize {
        self.and_those_around(scope).find(|scope| self.is_query[*scope]).unwrap_or(0)
    }
}

/// Finds every `tenant = $1` and gives it to the mention it is about.
fn bind(tokens: &[Token<'_>], scopes: &Scopes, mentions: &mut [Mention<'_>]) {
    for (at, window) in tokens.windows(3).enumerate() {
        let [tenant, Token::Mark('='), Token::Parameter(1)] = window else { continue };
        if !tenant.is("tenant") || !is_condition(tokens, scopes, at) {
            continue;
        }
        let scope = scopes.of[at];
        let bound = match tokens[..at] {
            [.., Token::Word(alias), Token::Mark('.')] => scopes.and_those_around(scope).find_map(|scope| {
                mentions.iter().position(|mention| mention.scope == scope && mention.alias.eq_ignore_ascii_case(alias))
            }),
            _ => {
                let query = scopes.query_of(scope);
                let is_open = |mention: &Mention<'_>| !mention.bound && !mention.is_insert;
                mentions.iter().position(|mention| is_open(mention) && scopes.query_of(mention.scope) == query)
            }
        };
        if let Some(mention) = bound.and_then(|bound| mentions.get_mut(bound)).filter(|mention| !mention.is_insert) {
            mention.bound = true;
        }
    }
}

/// Whether rows depend on what stands here. A value that is set or selected keeps no row away.
fn is_condition(tokens: &[Token<'_>], scopes: &Scopes, at: usize) -> bool {
    const CLAUSES: &[&str] =
        &["SELECT", "FROM", "JOIN", "SET", "VALUES", "WHERE", "ON", "GROUP", "HAVING", "ORDER", "LIMIT", "RETURNING"];
    let around: Vec<usize> = scopes.and_those_around(scopes.of[at]).collect();
    let is_clause = |before: &usize| around.contains(&scopes.of[*before]) && tokens[*before].is_any(CLAUSES);
    (0..at).rev().find(is_clause).is_some_and(|clause| tokens[clause].is_any(&["WHERE", "ON"]))
}

/// What the table is called in its query.
fn alias<'a>(tokens: &[Token<'a>], at: usize) -> &'a str {
    const NO_ALIAS: &[&str] = &[
        "WHERE",
        "SET",
        "JOIN",
        "LEFT",
        "RIGHT",
        "INNER",
        "CROSS",
        "FULL",
        "ON",
        "ORDER",
        "LIMIT",
        "GROUP",
        "HAVING",
        "UNION",
        "EXCEPT",
        "INTERSECT",
        "FOR",
        "USING",
        "VALUES",
        "SELECT",
        "RETURNING",
        "WITH",
        "DEFAULT",
    ];
    let Token::Word(table) = tokens[at] else { return "" };
    let next = if tokens.get(at + 1).is_some_and(|token| token.is("AS")) { at + 2 } else { at + 1 };
    match tokens.get(next) {
        Some(token @ Token::Word(alias)) if !token.is_any(NO_ALIAS) => alias,
        _ => table,
    }
}

/// `INSERT INTO t (…, tenant, …)` with `$1` at that position in every row of VALUES, or of the SELECT.
fn inserts_the_tenant(tokens: &[Token<'_>], scopes: &Scopes, at: usize) -> bool {
    if tokens.get(at + 1) != Some(&Token::Mark('(')) {
        return false;
    }
    let (columns, after) = list(tokens, at + 2);
    let Some(tenant_at) = columns.iter().position(|column| matches!(column, [column] if column.is("tenant"))) else {
        return false;
    };
    let own = scopes.of[at];
    let starts = |index: &usize| scopes.of[*index] == own && tokens[*index].is_any(&["VALUES", "SELECT"]);
    let Some(source) = (after..tokens.len()).find(starts) else { return false };
    let is_tenant = |row: &[&[Token<'_>]]| row.get(tenant_at).is_some_and(|value| **value == [Token::Parameter(1)]);
    if tokens[source].is("SELECT") {
        return selects(tokens, scopes, source).all(|select| is_tenant(&list(tokens, select + 1).0));
    }
    let (mut next, mut rows) = (source + 1, 0);
    while tokens.get(next) == Some(&Token::Mark('(')) {
        let (row, after) = list(tokens, next + 1);
        if !is_tenant(&row) {
            return false;
        }
        rows += 1;
        next = after + usize::from(tokens.get(after) == Some(&Token::Mark(',')));
    }
    rows > 0
}

/// This SELECT and those that a UNION adds to it.
fn selects<'t>(tokens: &'t [Token<'_>], scopes: &'t Scopes, first: usize) -> impl Iterator<Item = usize> + 't {
    std::iter::successors(Some(first), move |select| {
        let own = scopes.of[*select];
        let is_joined = |index: &usize| scopes.of[*index] == own && tokens[*index].is_any(SET_OPERATORS);
        let operator = (*select..tokens.len()).find(is_joined)?;
        (operator..tokens.len()).find(|index| tokens[*index].is("SELECT"))
    })
}

/// What stands between commas from here to the closing bracket or to FROM, and where that ends.
fn list<'t, 'a>(tokens: &'t [Token<'a>], from: usize) -> (Vec<&'t [Token<'a>]>, usize) {
    let (mut items, mut begin, mut depth) = (Vec::new(), from, 0);
    for (at, token) in tokens.iter().enumerate().skip(from) {
        match token {
            Token::Mark('(') => depth += 1,
            Token::Mark(')') if depth > 0 => depth -= 1,
            Token::Mark(')') => {
                items.push(&tokens[begin..at]);
                return (items, at + 1);
            }
            _ if depth == 0 && token.is("FROM") => {
                items.push(&tokens[begin..at]);
                return (items, at);
            }
            Token::Mark(',') if depth == 0 => {
                items.push(&tokens[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    items.push(tokens.get(begin..).unwrap_or_default());
    (items, tokens.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tables() -> TenantTables {
        TenantTables::new(["tasks".to_owned(), "receipts".to_owned()])
    }

    #[test]
    fn a_statement_that_binds_the_tenant_of_each_table_is_taken() {
        for good in [
            "SELECT id FROM tasks WHERE tenant = $1 AND id = $2",
            "SELECT id FROM tasks WHERE (tenant = $1 AND id = $2)",
            "INSERT INTO tasks (tenant, id) VALUES ($1, $2)",
            "INSERT INTO tasks (id, tenant) VALUES ($2, $1), ($3, $1)",
            "INSERT INTO tasks (id, tenant) WITH g (id) AS (VALUES ($2), ($3)) SELECT coalesce(g.id, $4), $1 FROM g",
            "INSERT INTO tasks (tenant, id) SELECT $1, r.task_id FROM receipts r WHERE r.tenant = $1",
            "INSERT INTO tasks (tenant, id) VALUES ($1, $2) ON CONFLICT (tenant, id) DO UPDATE SET x = tasks.x + 1",
            "UPDATE tasks SET status = $2 WHERE tenant = $1",
            "SELECT 1 FROM tasks t JOIN receipts r ON r.tenant = $1 AND r.task_id = t.id WHERE t.tenant = $1",
            "SELECT 1 FROM tasks AS t WHERE t.tenant = $1 AND EXISTS (SELECT 1 FROM receipts WHERE tenant = $1)",
            "SELECT tasks.id FROM tasks WHERE tasks.tenant = $1",
            "SELECT 1 FROM tasks WHERE tenant = $1 UNION ALL SELECT 2 FROM receipts WHERE tenant = $1",
            "WITH gone AS (DELETE FROM tasks WHERE tenant = $1 RETURNING id) INSERT INTO receipts (id, tenant) \
             SELECT gone.id, $1 FROM gone",
            "INSERT INTO tasks (tenant, id) SELECT $1, $2 UNION ALL SELECT $1, r.id FROM receipts r WHERE r.tenant = $1",
            "UPDATE tasks SET status = (SELECT kind FROM receipts r WHERE r.tenant = $1) WHERE tenant = $1",
            "SELECT value FROM meta WHERE id = 1",
            "SELECT value FROM meta WHERE name = 'tasks' -- receipts",
        ] {
            tables().check(good).unwrap();
        }
    }

    #[test]
    fn a_statement_that_leaves_a_table_without_its_tenant_is_refused() {
        for bad in [
            "SELECT id FROM tasks WHERE id = $2",
            "SELECT id FROM tasks WHERE id = $11",
            "SELECT id FROM tasks WHERE tenant = $11",
            "SELECT id FROM tasks WHERE tenant = '$1'",
            "SELECT id FROM tasks -- WHERE tenant = $1",
            "SELECT id FROM tasks /* WHERE tenant = $1 */",
            "SELECT id, $1 FROM tasks",
            "DELETE FROM receipts",
            "SELECT 1 FROM tasks t JOIN receipts r ON r.task_id = t.id WHERE t.tenant = $1",
            // Twice for one table and never for the other.
            "SELECT 1 FROM tasks t JOIN receipts r ON t.tenant = $1 AND r.task_id = t.id WHERE t.tenant = $1",
            "SELECT 1 FROM tasks t, tasks o WHERE t.tenant = $1 AND t.tenant = $1",
            "SELECT 1 FROM tasks, receipts WHERE tasks.tenant = $1",
            "SELECT 1 FROM tasks WHERE tenant = $1 AND tenant = $1 UNION ALL SELECT 2 FROM receipts",
            "UPDATE tasks SET status = $2 WHERE id IN (SELECT task_id FROM receipts WHERE tenant = $1 AND tenant = $1)",
            "UPDATE tasks SET status = $2 WHERE tenant = $1 AND id IN (SELECT task_id FROM receipts)",
            "INSERT INTO tasks (tenant, id) VALUES ($2, $1)",
            "INSERT INTO tasks (tenant, id) VALUES ($1, $2), ($3, $1)",
            "INSERT INTO tasks (id) VALUES ($1)",
            "INSERT INTO tasks VALUES ($1, $2)",
            "INSERT INTO tasks (tenant, id) SELECT tenant, id FROM receipts WHERE tenant = $1",
            "INSERT INTO tasks (tenant, id) SELECT $1, task_id FROM receipts",
            "INSERT INTO tasks (tenant, id) SELECT $1, $2 UNION ALL SELECT $3, $4",
            "INSERT INTO tasks (tenant, id) SELECT $1, $2 UNION SELECT $1, $3 UNION SELECT $4, $5",
            // It gives the row to this tenant, whosever it was.
            "UPDATE tasks SET tenant = $1 WHERE id = $2",
            "SELECT tenant = $1 FROM tasks",
            "DELETE FROM tasks RETURNING tenant = $1",
            "select id from Tasks",
            "SELECT id FROM public.tasks",
            "SELECT id FROM \"tasks\"",
            "DELETE FROM tasks USING receipts WHERE tasks.tenant = $1",
        ] {
            assert!(tables().check(bad).is_err(), "{bad}");
        }
    }
}
