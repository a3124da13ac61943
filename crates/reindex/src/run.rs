//! One run: projects, agents, messages in the order of their numbers, then what refers to them.

use std::collections::HashMap;
use std::sync::Arc;

use waybill_archive::layout::{LegacyFile, Profile, Scanned};
use waybill_kernel::{Code, Error, Principal, Result, Tenant, Time, hex};
use waybill_mail::acting::{Agent, Project};
use waybill_mail::import::{
    AgentRecord, BATCH_MAX, FileRecord, Highest, MessageRecord, NUMBER_MAX, ProjectRecord, PutAgents, PutMessages,
    PutProject, Recipient, Reserve,
};
use waybill_mail::rules::addresses::gather;
use waybill_store::Store;

use crate::directory::Directory;
use crate::report::Report;
use crate::source::{Read, Source};

/// Texts and attachments of one transaction, in bytes; the message that exceeds it is its last.
const BATCH_BYTES_MAX: usize = 8 << 20;
/// Names of one message in an archive, before they are looked up.
const NAMES_MAX: usize = 1_000;

/// Told after every transaction with messages done and messages in all; answers whether to go on.
pub type Progress<'a> = &'a (dyn Fn(usize, usize) -> bool + Send + Sync);

#[derive(Clone, Debug)]
pub struct Options {
    pub tenant: Tenant,
    /// Who acts for the agents of an archive that does not say it.
    pub principal: String,
    /// Who acts for the overseer of every project: an admin, whoever acts for the agents.
    pub admin: String,
    /// Have our own archive follow: not where it is what is read.
    pub archived: bool,
}

/// What an archive of the Python server has not.
const NOT_IN_LEGACY: &[&str] = &[
    "what was read and acknowledged",
    "contact policies (all agents: auto)",
    "contacts",
    "registration tokens (register_agent gives a new one)",
];

/// Writes what the archive has and the database has not.
pub async fn reindex(store: &Store, source: Source, options: &Options, progress: Progress<'_>) -> Result<Report> {
    let source = Arc::new(source);
    let mut report = Report::default();
    report.refuse_all(&source.refused);
    if source.is_legacy {
        report.not_in_archive = NOT_IN_LEGACY.to_vec();
    }
    let coming = highest(&source);
    store.system().run(Reserve(coming)).await?;
    let directory = Directory::new(store, options, source.policy_of_unknown(), coming.agent).await?;
    let mut run = Run { store, source, options, coming, directory, report, rows: HashMap::new() };
    run.projects().await?;
    run.agents().await?;
    run.messages(progress).await?;
    run.reservations().await?;
    run.seen().await?;
    run.contacts().await?;
    run.slots().await?;
    run.products().await?;
    Ok(run.report)
}

/// Numbers beyond what is taken are refused one by one, and must not lift the others.
fn highest(source: &Source) -> Highest {
    let all = &source.projects;
    Highest {
        project: most(all.iter().filter_map(project_number)),
        agent: most(all.iter().flat_map(|project| project.agents.iter().map(|agent| agent.id))),
        message: most(all.iter().flat_map(|project| project.messages.iter().map(|(id, _)| *id))),
        reservation: most(all.iter().flat_map(|project| project.reservations.iter().map(|one| one.id))),
        product: most(source.common.iter().flat_map(|common| common.products.iter().map(|one| one.id))),
    }
}

fn most(numbers: impl Iterator<Item = i64>) -> i64 {
    numbers.filter(|id| *id <= NUMBER_MAX).max().unwrap_or(0)
}

/// Its own file says it, else its agents.
fn project_number(project: &Scanned) -> Option<i64> {
    project.id.or_else(|| project.agents.first().map(|agent| agent.project_id))
}

pub(crate) struct Run<'a> {
    pub(crate) store: &'a Store,
    pub(crate) source: Arc<Source>,
    pub(crate) options: &'a Options,
    coming: Highest,
    pub(crate) directory: Directory,
    pub(crate) report: Report,
    /// The rows of the archive's projects, by their place in it.
    pub(crate) rows: HashMap<usize, Project>,
}

impl Run<'_> {
    async fn projects(&mut self) -> Result<()> {
        let source = Arc::clone(&self.source);
        for (at, scanned) in source.projects.iter().enumerate() {
            let Some(human_key) = scanned.human_key.clone() else {
                self.report.projects.refused += 1;
                self.report.refuse(&scanned.label, "nothing in it says which path it is about");
                self.directory.add_project(None, &scanned.slug);
                continue;
            };
            let first = scanned.agents.iter().map(|agent| agent.inception_ts).min();
            let created_at = scanned.created.or(first).unwrap_or_else(|| self.store.now());
            let (number, slug) = (project_number(scanned), scanned.slug.clone());
            let record = ProjectRecord { number, human_key, slug, created_at };
            let (tenant, coming, archived) = (self.options.tenant, self.coming.project, self.options.archived);
            let work = PutProject { tenant, record, coming, archived };
            let (put, project) = self.store.system().run(work).await?;
            self.report.count(|report| &mut report.projects, put, || scanned.label.clone());
            self.directory.add_project(project.clone(), &scanned.slug);
            if let Some(project) = project {
                self.rows.insert(at, project);
            }
        }
        Ok(())
    }

    async fn agents(&mut self) -> Result<()> {
        let source = Arc::clone(&self.source);
        let unknown = source.policy_of_unknown();
        for (at, scanned) in source.projects.iter().enumerate() {
            let Some(project) = self.rows.get(&at).cloned() else { continue };
            let policies: HashMap<&str, &str> =
                scanned.states.iter().map(|(name, state)| (name.as_str(), state.contact_policy.as_str())).collect();
            for profiles in scanned.agents.chunks(BATCH_MAX) {
                let record = |profile: &Profile| AgentRecord {
                    number: Some(profile.id),
                    name: profile.name.clone(),
                    program: profile.program.clone(),
                    model: profile.model.clone(),
                    task: profile.task_description.clone(),
                    policy: policies.get(profile.name.as_str()).copied().or(unknown).map(str::to_owned),
                    attachments_policy: profile.attachments_policy.clone(),
                    reaper_exempt: profile.reaper_exempt,
                    principal: self.principal_of(profile.principal.as_deref()),
                    token: self.token_of(profile.token_sha256.as_deref()),
                    created_at: profile.inception_ts,
                    active_at: profile.last_active_ts,
                    retired_at: profile.retired_ts,
                };
                let records = profiles.iter().map(record).collect();
                let Options { tenant, admin, archived, .. } = self.options.clone();
                let work =
                    PutAgents { tenant, project: project.clone(), records, admin, coming: self.coming.agent, archived };
                let outcomes = self.store.system().run(work).await?;
                for (profile, (put, agent)) in profiles.iter().zip(outcomes) {
                    let file = || format!("{}/agents/{}/profile.json", scanned.label, profile.name);
                    self.report.count(|report| &mut report.agents, put, file);
                    if let Some(agent) = agent {
                        self.directory.add_agent(agent);
                    }
                }
            }
        }
        Ok(())
    }

    /// Archives of others say nothing of ours: whatever stands there was not written by a server.
    fn principal_of(&self, said: Option<&str>) -> String {
        let said = said.filter(|said| !self.source.is_legacy && said.parse::<Principal>().is_ok());
        said.unwrap_or(&self.options.principal).to_owned()
    }

    fn token_of(&self, said: Option<&str>) -> Option<[u8; 32]> {
        let said = said.filter(|_| !self.source.is_legacy)?;
        hex::decode_array(said)
    }

    /// In the order of numbers over all projects, as they were sent.
    async fn messages(&mut self, progress: Progress<'_>) -> Result<()> {
        let source = Arc::clone(&self.source);
        let mut all: Vec<(i64, usize, usize)> = Vec::with_capacity(source.messages());
        for (at, project) in source.projects.iter().enumerate() {
            if self.rows.contains_key(&at) {
                all.extend(project.messages.iter().enumerate().map(|(nth, (id, _))| (*id, at, nth)));
            } else if !project.messages.is_empty() {
                self.report.messages.refused += project.messages.len() as u64;
                let why = format!("{} messages: their project is not there", project.messages.len());
                self.report.refuse(format!("{}/messages", project.label), why);
            }
        }
        all.sort_unstable();
        let (mut done, total) = (0, all.len());
        while done < total {
            let (read, taken) = self.read_batch(&all[done..]).await?;
            let mut batch = Vec::with_capacity(read.len());
            for (file, at, read) in read {
                match self.record(at, &file, read).await? {
                    Ok(record) => batch.push((file, record)),
                    Err(why) => {
                        self.report.messages.refused += 1;
                        self.report.refuse(file, why);
                    }
                }
            }
            self.put_messages(batch).await?;
            done += taken;
            if !progress(done, total) {
                return Err(Error::new(Code::Interrupted, "Stopped; run it again to go on."));
            }
        }
        Ok(())
    }

    /// The next ones, off the runtime, and how many were looked at. Those that cannot be read are told.
    async fn read_batch(&mut self, all: &[(i64, usize, usize)]) -> Result<(Vec<(String, usize, Read)>, usize)> {
        let source = Arc::clone(&self.source);
        let wanted: Vec<_> = all.iter().take(BATCH_MAX).copied().collect();
        let read = move || {
            let (mut read, mut refused, mut bytes, mut taken) = (Vec::new(), Vec::new(), 0, 0);
            for (id, at, nth) in wanted {
                let (_, path) = &source.projects[at].messages[nth];
                let file = format!("{}/{path}", source.projects[at].label);
                taken += 1;
                match source.read(at, id, path) {
                    Ok(one) => {
                        bytes += one.message.body.len();
                        bytes += one.files.iter().map(|file| file.content.len()).sum::<usize>();
                        read.push((file, at, one));
                    }
                    Err(error) => refused.push((file, error.to_string())),
                }
                if bytes > BATCH_BYTES_MAX {
                    break;
                }
            }
            (read, refused, taken)
        };
        let (read, refused, taken) = tokio::task::spawn_blocking(read).await.map_err(Error::internal)?;
        for (file, why) in refused {
            self.report.messages.refused += 1;
            self.report.refuse(file, why);
        }
        Ok((read, taken))
    }

    /// The row of a message, with those of the agents that it names.
    async fn record(
        &mut self,
        at: usize,
        file: &str,
        read: Read,
    ) -> Result<std::result::Result<MessageRecord, String>> {
        let Read { message, files, lost } = read;
        for why in lost {
            self.report.lose(file, why);
        }
        if message.to.len() + message.cc.len() + message.bcc.len() > NAMES_MAX {
            return Ok(Err(format!("it names more than {NAMES_MAX} agents")));
        }
        let Some(filed) = self.rows.get(&at).cloned() else { return Ok(Err("its project is not there".to_owned())) };
        // The Python server files a message with its recipients; ours is its sender's.
        let project = match &message.from_project {
            None => filed.clone(),
            Some(key) => match self.directory.project(key) {
                Some(project) => project.clone(),
                None => return Ok(Err("the project of its sender is not there".to_owned())),
            },
        };
        let created_at = message.created;
        let sender = match self.agent(&project, &message.from, created_at).await? {
            Ok(sender) => sender,
            Err(why) => return Ok(Err(why)),
        };
        let mut recipients: Vec<Recipient> = Vec::new();
        for address in gather(&message.to, &message.cc, &message.bcc) {
            let home = match &address.project {
                None => filed.clone(),
                Some(key) => match self.directory.project(key) {
                    Some(project) => project.clone(),
                    None => return Ok(Err("it is to somebody of a project that is not there".to_owned())),
                },
            };
            match self.agent(&home, &address.name, created_at).await? {
                Ok(agent) if recipients.iter().any(|known| known.agent.id == agent.id) => {}
                Ok(agent) => recipients.push(Recipient { kind: address.kind, agent, project: home }),
                Err(why) => return Ok(Err(why)),
            }
        }
        let of = |file: LegacyFile| FileRecord { name: file.name, media_type: file.media_type, content: file.content };
        Ok(Ok(MessageRecord {
            number: message.id,
            project,
            sender,
            recipients,
            subject: message.subject,
            body: message.body,
            importance: message.importance,
            ack_required: message.ack_required,
            intro: message.intro,
            thread: message.thread_id,
            reply_to: message.reply_to,
            files: files.into_iter().map(of).collect(),
            created_at,
        }))
    }

    pub(crate) async fn agent(
        &mut self,
        project: &Project,
        name: &str,
        at: Time,
    ) -> Result<std::result::Result<Agent, String>> {
        self.directory.agent(self.store, project, name, at, &mut self.report).await
    }

    async fn put_messages(&mut self, batch: Vec<(String, MessageRecord)>) -> Result<()> {
        let (files, records): (Vec<_>, Vec<_>) = batch.into_iter().unzip();
        if records.is_empty() {
            return Ok(());
        }
        let work = PutMessages { tenant: self.options.tenant, records, archived: self.options.archived };
        let outcomes = self.store.system().run(work).await?;
        for (file, put) in files.into_iter().zip(outcomes) {
            self.report.count(|report| &mut report.messages, put, || file);
        }
        Ok(())
    }
}
