//! The roles: what transactions run as, and what the login is while it is none of them.
//!
//! The login becomes `waybill_app` or `waybill_system` for each transaction and must inherit neither: a statement that is
//! sent without becoming one of them then sees no tenant's rows; with inheritance it would see everybody's. Up to PostgreSQL
//! 15 inheritance is an attribute of the member, for all of its memberships at once, and an owner of a database that
//! inherits nothing may not even make tables in it. So a role that inherits nothing stands in between: `waybill_login` is
//! a member of the two, and the login of it. From 16 on every grant says for itself, and this one says the same.

use std::time::Duration;

use tokio_postgres::Client;
use tokio_postgres::error::SqlState;
use waybill_kernel::{Code, Error, Result};

use super::connect::unusable;
use super::failure::describe;
use crate::migrate::{ROLE_APP, ROLE_LOGIN, ROLE_SYSTEM};

/// Roles belong to the whole cluster, so another database's start may be making them at this moment.
const ATTEMPTS_MAX: u32 = 5;
const PAUSE: Duration = Duration::from_millis(50);

/// Who this connection is, and what follows from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Login {
    /// Quoted where SQL wants it.
    pub user: String,
    /// Not bound by any policy: a superuser, or a role with BYPASSRLS.
    pub is_unbound: bool,
    is_superuser: bool,
    /// Roles of ours that there are not.
    missing: Vec<String>,
    /// Roles it cannot become.
    closed: Vec<String>,
    /// Roles whose rows it sees without becoming them.
    pub inherited: Vec<String>,
}

impl Login {
    pub(super) async fn look(client: &Client) -> std::result::Result<Self, tokio_postgres::Error> {
        const WHO: &str = "SELECT quote_ident(current_user), rolsuper, rolbypassrls, \
                           current_setting('server_version_num')::int >= 160000 FROM pg_roles WHERE rolname = current_user";
        // Membership alone lets nobody become a role from 16 on; before, there is no word for more than membership.
        const STANDING: &str = "SELECT r.name, p.oid IS NULL, \
                                coalesce(pg_has_role(current_user, p.oid, $3), false), \
                                coalesce(pg_has_role(current_user, p.oid, 'USAGE'), false) \
                                FROM unnest(ARRAY[$1, $2]) WITH ORDINALITY AS r (name, nth) \
                                LEFT JOIN pg_roles p ON p.rolname = r.name ORDER BY r.nth";
        let who = client.query_one(WHO, &[]).await?;
        let (is_superuser, bypasses): (bool, bool) = (who.try_get(1)?, who.try_get(2)?);
        let becoming = if who.try_get(3)? { "SET" } else { "MEMBER" };
        let mut login = Self {
            user: who.try_get(0)?,
            is_unbound: is_superuser || bypasses,
            is_superuser,
            missing: Vec::new(),
            closed: Vec::new(),
            inherited: Vec::new(),
        };
        for row in client.query(STANDING, &[&ROLE_APP, &ROLE_SYSTEM, &becoming]).await? {
            let name: String = row.try_get(0)?;
            if row.try_get(1)? {
                login.missing.push(name);
                continue;
            }
            if !row.try_get::<_, bool>(2)? {
                login.closed.push(name.clone());
            }
            // To a superuser everything is granted, whatever it is a member of.
            if !is_superuser && row.try_get(3)? {
                login.inherited.push(name);
            }
        }
        Ok(login)
    }

    fn is_in_order(&self) -> bool {
        self.missing.is_empty() && self.closed.is_empty() && self.inherited.is_empty()
    }

    /// What somebody who may has to run. All of it may be run again.
    pub fn cure(&self) -> String {
        let made: String = self.missing.iter().map(|role| format!("CREATE ROLE {role} NOLOGIN; ")).collect();
        format!("{made}{}", statements(&self.user).join(" "))
    }
}

/// A role that is there already is no reason to stop.
fn statements(user: &str) -> [String; 4] {
    [
        format!(
            "DO $$ BEGIN CREATE ROLE {ROLE_LOGIN} NOLOGIN NOINHERIT; EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$;"
        ),
        format!("GRANT {ROLE_APP}, {ROLE_SYSTEM} TO {ROLE_LOGIN};"),
        format!("GRANT {ROLE_LOGIN} TO {user};"),
        format!("REVOKE {ROLE_APP}, {ROLE_SYSTEM} FROM {user};"),
    ]
}

/// Makes the roles and mends what the login may mend by itself; refuses what it may not, with the statements that do.
pub(super) async fn prepare(client: &Client) -> Result<()> {
    let mut login = look(client).await?;
    for _ in 0..ATTEMPTS_MAX {
        if login.is_in_order() {
            break;
        }
        match mend(client, &login).await {
            Ok(()) => {}
            Err(error) if error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) => break,
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
        login = look(client).await?;
    }
    if login.is_unbound {
        let user = &login.user;
        tracing::warn!(
            user,
            "this PostgreSQL user is not bound by row-level security (superuser or BYPASSRLS): tenants are held apart by the \
             statements alone. Give the server a user of its own that owns its database"
        );
    }
    if login.is_in_order() { Ok(()) } else { Err(refusal(&login)) }
}

async fn look(client: &Client) -> Result<Login> {
    Login::look(client).await.map_err(|error| unusable(&error))
}

async fn mend(client: &Client, login: &Login) -> std::result::Result<(), tokio_postgres::Error> {
    for role in &login.missing {
        client.batch_execute(&format!("CREATE ROLE {role} NOLOGIN NOBYPASSRLS")).await?;
    }
    if login.is_superuser {
        return Ok(());
    }
    for statement in statements("CURRENT_USER") {
        client.batch_execute(&statement).await?;
    }
    tracing::info!(user = login.user, "the database user may become the two roles and inherits neither");
    Ok(())
}

fn refusal(login: &Login) -> Error {
    let Login { user, inherited, closed, missing, .. } = login;
    let why = match (inherited.as_slice(), closed.as_slice(), missing.as_slice()) {
        ([], [], missing) => format!("may not make {}", missing.join(" and ")),
        ([], closed, _) => format!("may not become {}", closed.join(" and ")),
        (inherited, ..) => {
            format!(
                "inherits {}, so that a statement without a role would see every tenant's rows",
                inherited.join(" and ")
            )
        }
    };
    let message = format!("The database user {user} {why}. Let an administrator run: {}", login.cure());
    Error::new(Code::DatabaseUnusable, message)
}

/// For a look that changes nothing.
pub(super) async fn standing(client: &Client) -> Result<Login> {
    Login::look(client)
        .await
        .map_err(|error| Error::new(Code::DatabaseUnusable, format!("PostgreSQL refused: {}.", describe(&error))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_the_fault_and_the_statements() {
        let login = |missing: &[&str], closed: &[&str], inherited: &[&str]| {
            let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
            let login = Login {
                user: "shop".to_owned(),
                is_unbound: false,
                is_superuser: false,
                missing: owned(missing),
                closed: owned(closed),
                inherited: owned(inherited),
            };
            refusal(&login).message().to_owned()
        };
        let told = login(&[], &[], &[ROLE_SYSTEM]);
        assert!(told.contains("shop inherits waybill_system") && told.contains("FROM shop;"), "{told}");
        assert!(login(&[], &[ROLE_APP], &[]).contains("may not become waybill_app"));
        let told = login(&[ROLE_APP, ROLE_SYSTEM], &[], &[]);
        assert!(told.contains("may not make waybill_app and waybill_system. "), "{told}");
        assert!(told.contains("CREATE ROLE waybill_system NOLOGIN; "), "{told}");
    }
}
