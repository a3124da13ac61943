//! Look before you edit: who holds these paths? Reads, and changes nothing.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Example, OperationSpec, Profile, Result, Route};
use waybill_store::{Ctx, Operation, Reply, Tx};

use crate::acting::{agent, project};
use crate::reservations::{Conflict, Looking, in_the_way};
use crate::rules::paths;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CheckFileReservationConflicts {
    /// The project's absolute path or slug.
    pub project_key: String,
    /// Whose own reservations are told apart.
    pub agent_name: String,
    /// Paths or globs below the project's root: at most 200.
    #[schemars(length(min = 1, max = 200))]
    pub paths: Vec<String>,
    /// As the paths would be reserved: true unless given.
    pub exclusive: Option<bool>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Checked {
    /// Nobody else holds any of the paths.
    pub clear: bool,
    pub conflicts: Vec<Conflict>,
    /// The agent's own reservations of these paths.
    pub own: Vec<Conflict>,
}

impl Operation for CheckFileReservationConflicts {
    const SPEC: OperationSpec = OperationSpec {
        name: "check_file_reservation_conflicts",
        route: Route::post("/v1/mail/file_reservations/check"),
        profile: Profile::Full,
        title: "Check files for conflicts",
        description: "Ask who holds files before you edit them. Changes nothing. Your own reservations are listed apart and are \
                      no conflicts.",
        example: Example {
            arguments: r#"{"project_key": "/data/projects/backend", "agent_name": "GreenCastle", "paths": ["docs/api.md"]}"#,
            answer: r#"{"clear": false, "conflicts": [{"path": "docs/api.md", "holders": [{"id": 3, "agent": "BlueLake",
                "path_pattern": "docs/**", "exclusive": true, "reason": "", "expires_ts": "2026-01-05T12:45:00.000000Z"}]}],
                "own": []}"#,
        },
        ..super::READ
    };
    type Output = Checked;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<Checked>> {
        let paths = paths::read_all(&self.paths)?;
        let exclusive = self.exclusive.unwrap_or(true);
        let project = project(tx, &self.project_key).await?;
        let agent = agent(tx, &project, &self.agent_name).await?;
        let held = in_the_way(tx, ctx.now, project.id, &paths).await?;
        let mut looking = Looking::default();
        let (mut conflicts, mut own) = (Vec::new(), Vec::new());
        for path in &paths {
            let mut note = |list: &mut Vec<Conflict>, exclusive: bool, is_own: bool| {
                let of_those = held.iter().filter(|held| (held.reservation.agent == agent.id) == is_own);
                let holders = looking.conflicting(path, exclusive, of_those);
                if !holders.is_empty() {
                    list.push(Conflict { path: path.text.clone(), holders });
                }
            };
            note(&mut conflicts, exclusive, false);
            note(&mut own, true, true);
        }
        Ok(Reply::Done(Checked { clear: conflicts.is_empty(), conflicts, own }))
    }
}
