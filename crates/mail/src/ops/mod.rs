//! One file per operation.

use waybill_store::Registry;

use crate::attaching::Attaching;

pub mod acknowledge_message;
pub mod create_agent_identity;
pub mod ensure_project;
pub mod fetch_inbox;
pub mod fetch_inbox_events;
pub mod files;
pub mod find;
pub mod get_attachment;
pub mod get_message;
pub mod get_project;
pub mod guard;
pub mod health_check;
pub mod list_agents;
pub mod list_contacts;
pub mod list_projects;
pub mod macros;
pub mod mark_message_read;
pub mod products;
pub mod read_mailbox;
pub mod register_agent;
pub mod reply_message;
pub mod request_contact;
pub mod respond_contact;
pub mod retire_agent;
pub mod send_message;
pub mod send_overseer_message;
pub mod set_contact_policy;
pub mod slots;
pub mod tooling;
pub mod unretire_agent;
pub mod whois;

pub(crate) fn register(registry: Registry) -> Registry {
    let registry = registry
        .with::<health_check::WithPool>()
        .with::<ensure_project::EnsureProject>()
        .with::<list_projects::ListProjects>()
        .with::<get_project::GetProject>()
        .with::<register_agent::RegisterAgent>()
        .with::<create_agent_identity::CreateAgentIdentity>()
        .with::<whois::WithCommits>()
        .with::<list_agents::ListAgents>()
        .with::<retire_agent::RetireAgent>()
        .with::<unretire_agent::UnretireAgent>()
        .with::<Attaching<send_message::SendMessage>>()
        .with::<Attaching<reply_message::ReplyMessage>>()
        .with::<fetch_inbox::FetchInbox>()
        .with::<fetch_inbox_events::FetchInboxEvents>()
        .with::<get_message::GetMessage>()
        .with::<get_attachment::GetAttachment>()
        .with::<read_mailbox::ReadMailbox>()
        .with::<mark_message_read::MarkMessageRead>()
        .with::<acknowledge_message::AcknowledgeMessage>()
        .with::<request_contact::RequestContact>()
        .with::<respond_contact::RespondContact>()
        .with::<list_contacts::ListContacts>()
        .with::<set_contact_policy::SetContactPolicy>()
        .with::<send_overseer_message::SendOverseerMessage>();
    tooling::register(guard::register(macros::register(registry)))
}
