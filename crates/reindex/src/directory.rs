//! Who is who: from the names that files use to the rows that they became.

use std::collections::HashMap;

use waybill_kernel::{Result, Tenant, Time};
use waybill_mail::acting::{Agent, Project};
use waybill_mail::import::{AgentRecord, KnownProjects, Nobody, PutAgents};
use waybill_mail::rules::{names, projects};
use waybill_store::Store;

use crate::Options;
use crate::report::Report;

pub(crate) struct Directory {
    tenant: Tenant,
    principal: String,
    admin: String,
    /// Of agents of whom the archive says none.
    policy: Option<&'static str>,
    /// The highest number of an agent that is to come.
    coming: i64,
    archived: bool,
    /// By path and by the slug that the database gives.
    projects: HashMap<String, Project>,
    /// Those of the archive by what it calls them: another project may have that slug in the database. None for one that was not taken.
    own: HashMap<String, Option<Project>>,
    agents: HashMap<(i64, String), Agent>,
}

impl Directory {
    pub async fn new(store: &Store, options: &Options, policy: Option<&'static str>, coming: i64) -> Result<Self> {
        let Options { tenant, principal, admin, archived } = options.clone();
        let (projects, own, agents) = (HashMap::new(), HashMap::new(), HashMap::new());
        let mut directory = Self { tenant, principal, admin, policy, coming, archived, projects, own, agents };
        for project in store.system().run(KnownProjects(tenant)).await? {
            directory.add_known(project);
        }
        Ok(directory)
    }

    fn add_known(&mut self, project: Project) {
        self.projects.insert(project.slug.clone(), project.clone());
        self.projects.insert(project.human_key.clone(), project);
    }

    /// `slug` is what the archive calls it; no project where it was not taken.
    pub fn add_project(&mut self, project: Option<Project>, slug: &str) {
        self.own.entry(slug.to_owned()).or_insert_with(|| project.clone());
        if let Some(project) = project {
            self.add_known(project);
        }
    }

    pub fn project(&self, key: &str) -> Option<&Project> {
        let key = key.trim();
        if projects::is_absolute(key) {
            return self.projects.get(&projects::human_key(key));
        }
        // Who is named in the archive is named as it calls them: mail for one project is not to reach another.
        match self.own.get(key) {
            Some(own) => own.as_ref(),
            None => self.projects.get(key),
        }
    }

    pub fn add_agent(&mut self, agent: Agent) {
        self.agents.insert((agent.project, names::key(&agent.name)), agent);
    }

    /// The agent of this name, made up if neither archive nor database has a profile of it. It is retired then, unless it is the overseer.
    pub async fn agent(
        &mut self,
        store: &Store,
        project: &Project,
        name: &str,
        at: Time,
        report: &mut Report,
    ) -> Result<std::result::Result<Agent, String>> {
        let key = (project.id, names::key(name));
        if let Some(agent) = self.agents.get(&key) {
            return Ok(Ok(agent.clone()));
        }
        let nobody = AgentRecord::from(Nobody { name: name.trim(), principal: &self.principal, at });
        let records = vec![AgentRecord { policy: self.policy.map(str::to_owned), ..nobody }];
        let (tenant, coming, archived) = (self.tenant, self.coming, self.archived);
        let work = PutAgents { tenant, project: project.clone(), records, admin: self.admin.clone(), coming, archived };
        let Some((put, agent)) = store.system().run(work).await?.pop() else {
            return Ok(Err("an agent was neither found nor made".to_owned()));
        };
        match agent {
            None => Ok(Err(format!("it names an agent that cannot be: {put:?}"))),
            Some(agent) => {
                if put != waybill_mail::import::Put::Known && agent.retired_at.is_some() {
                    report.make_up(format!("{} of {}", agent.name, project.human_key));
                }
                self.agents.insert(key, agent.clone());
                Ok(Ok(agent))
            }
        }
    }
}
