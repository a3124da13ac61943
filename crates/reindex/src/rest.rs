//! What refers to agents and messages: reservations, what was read, contacts, build slots, products.

use std::collections::HashSet;
use std::sync::Arc;

use waybill_archive::layout::{Contact, Delivered};
use waybill_kernel::Result;
use waybill_mail::acting::Project;
use waybill_mail::import::{
    BATCH_MAX, ContactRecord, ProductRecord, PutContacts, PutProduct, PutReservations, PutSeen, PutSlots,
    ReservationRecord, SeenRecord, SlotRecord,
};

use crate::run::Run;

impl Run<'_> {
    pub(crate) async fn reservations(&mut self) -> Result<()> {
        let source = Arc::clone(&self.source);
        for (at, scanned) in source.projects.iter().enumerate() {
            let Some(project) = self.rows.get(&at).cloned() else { continue };
            let file = |id: i64| format!("{}/file_reservations: {id}", scanned.label);
            for some in scanned.reservations.chunks(BATCH_MAX) {
                let mut records = Vec::with_capacity(some.len());
                for one in some {
                    match self.agent(&project, &one.agent, one.created_ts).await? {
                        Ok(agent) => records.push(ReservationRecord {
                            number: one.id,
                            project: project.id,
                            agent: agent.id,
                            path: one.path_pattern.clone(),
                            exclusive: one.exclusive,
                            reason: one.reason.clone(),
                            created_at: one.created_ts,
                            expires_at: one.expires_ts,
                            released_at: one.released_ts,
                        }),
                        Err(why) => {
                            self.report.reservations.refused += 1;
                            self.report.refuse(file(one.id), why);
                        }
                    }
                }
                let numbers: Vec<i64> = records.iter().map(|record| record.number).collect();
                let work = PutReservations { tenant: self.options.tenant, records, archived: self.options.archived };
                let outcomes = self.store.system().run(work).await?;
                for (number, put) in numbers.into_iter().zip(outcomes) {
                    self.report.count(|report| &mut report.reservations, put, || file(number));
                }
            }
        }
        Ok(())
    }

    pub(crate) async fn seen(&mut self) -> Result<()> {
        let source = Arc::clone(&self.source);
        let (tenant, archived) = (self.options.tenant, self.options.archived);
        for (at, scanned) in source.projects.iter().enumerate() {
            let Some(project) = self.rows.get(&at).cloned() else { continue };
            for (name, path) in &scanned.seen {
                let file = format!("{}/{path}", scanned.label);
                let (read, now) = (scanned.seen(path), self.store.now());
                let seen = match read {
                    Ok(seen) => seen,
                    Err(error) => {
                        self.report.refuse(file, error.to_string());
                        continue;
                    }
                };
                let agent = match self.agent(&project, name, now).await? {
                    Ok(agent) => agent.id,
                    Err(why) => {
                        self.report.refuse(file, why);
                        continue;
                    }
                };
                let of = |(message, times): (&i64, &Delivered)| SeenRecord {
                    message: *message,
                    agent,
                    read_at: times.read_ts,
                    ack_at: times.ack_ts,
                };
                let records: Vec<SeenRecord> = seen.0.iter().map(of).collect();
                for some in records.chunks(BATCH_MAX) {
                    let work = PutSeen { tenant, records: some.to_vec(), archived };
                    self.report.read += self.store.system().run(work).await?;
                }
            }
        }
        Ok(())
    }

    /// A contact stands with both of its agents, and is written once.
    pub(crate) async fn contacts(&mut self) -> Result<()> {
        let source = Arc::clone(&self.source);
        let (tenant, archived) = (self.options.tenant, self.options.archived);
        let mut seen: HashSet<(i64, i64)> = HashSet::new();
        for (at, scanned) in source.projects.iter().enumerate() {
            let Some(project) = self.rows.get(&at).cloned() else { continue };
            for (name, state) in &scanned.states {
                let file = format!("{}/agents/{name}/state.json", scanned.label);
                let mut records = Vec::new();
                for contact in &state.contacts {
                    match self.contact(&project, name, contact).await? {
                        Ok(record) if seen.insert((record.from, record.to)) => records.push(record),
                        Ok(_) => {}
                        Err(why) => self.report.refuse(&file, why),
                    }
                }
                for some in records.chunks(BATCH_MAX) {
                    let work = PutContacts { tenant, records: some.to_vec(), archived };
                    for put in self.store.system().run(work).await? {
                        self.report.count(|report| &mut report.contacts, put, || file.clone());
                    }
                }
            }
        }
        Ok(())
    }

    /// `name` is whose state it stands in: one of the two.
    async fn contact(
        &mut self,
        home: &Project,
        name: &str,
        contact: &Contact,
    ) -> Result<std::result::Result<ContactRecord, String>> {
        let is_from = contact.from_project.is_none() && contact.from == name;
        let is_to = contact.to_project.is_none() && contact.to == name;
        if !is_from && !is_to {
            return Ok(Err("a contact of others stands in it".to_owned()));
        }
        let missing = || "a contact is with somebody of a project that is not there".to_owned();
        let of = |key: &Option<String>| match key {
            None => Some(home.clone()),
            Some(key) => self.directory.project(key).cloned(),
        };
        let (Some(from_home), Some(to_home)) = (of(&contact.from_project), of(&contact.to_project)) else {
            return Ok(Err(missing()));
        };
        let from = self.agent(&from_home, &contact.from, contact.created_ts).await?;
        let to = self.agent(&to_home, &contact.to, contact.created_ts).await?;
        Ok(from.and_then(|from| {
            to.map(|to| ContactRecord {
                from: from.id,
                to: to.id,
                status: contact.status.clone(),
                reason: contact.reason.clone(),
                created_at: contact.created_ts,
                updated_at: contact.updated_ts,
                expires_at: contact.expires_ts,
            })
        }))
    }

    pub(crate) async fn slots(&mut self) -> Result<()> {
        let source = Arc::clone(&self.source);
        for (at, scanned) in source.projects.iter().enumerate() {
            let Some(project) = self.rows.get(&at).cloned() else { continue };
            let file = format!("{}/build_slots", scanned.label);
            for some in scanned.slots.chunks(BATCH_MAX) {
                let mut records = Vec::with_capacity(some.len());
                for slot in some {
                    match self.agent(&project, &slot.agent, slot.acquired_ts).await? {
                        Ok(agent) => records.push(SlotRecord {
                            project: project.id,
                            slot: slot.slot.clone(),
                            agent: agent.id,
                            exclusive: slot.exclusive,
                            acquired_at: slot.acquired_ts,
                            expires_at: slot.expires_ts,
                            released_at: slot.released_ts,
                        }),
                        Err(why) => self.report.refuse(&file, why),
                    }
                }
                let (tenant, archived) = (self.options.tenant, self.options.archived);
                for put in self.store.system().run(PutSlots { tenant, records, archived }).await? {
                    self.report.count(|report| &mut report.build_slots, put, || file.clone());
                }
            }
        }
        Ok(())
    }

    pub(crate) async fn products(&mut self) -> Result<()> {
        let source = Arc::clone(&self.source);
        for product in source.common.iter().flat_map(|common| &common.products) {
            let file = format!("products: {}", product.id);
            let mut projects = Vec::with_capacity(product.projects.len());
            for linked in &product.projects {
                match self.directory.project(&linked.slug) {
                    Some(project) => projects.push((project.id, linked.linked_ts)),
                    None => self.report.refuse(&file, "a project that belongs to it is not there"),
                }
            }
            let record = ProductRecord {
                number: product.id,
                key: product.key.clone(),
                name: product.name.clone(),
                created_at: product.created_ts,
                projects,
            };
            let (tenant, archived) = (self.options.tenant, self.options.archived);
            let put = self.store.system().run(PutProduct { tenant, record, archived }).await?;
            self.report.count(|report| &mut report.products, put, || file);
        }
        Ok(())
    }
}
