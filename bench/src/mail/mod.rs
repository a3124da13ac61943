//! Mail, spoken to as MCP clients do: what is measured of it, and of the Python server whose tools have the same names.

mod agents;
mod archive;
mod guard;
mod letters;
mod mcp;
mod office;
mod offices;
mod rival;
pub mod soak;
mod turns;

pub use offices::{Offices, Slice};
pub use turns::Turns;

/// Whose mail, and how much of it there is already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum House {
    /// The product, with little more than what the slices themselves send.
    Few,
    /// The product, with 100,000 messages in its project and in the archive.
    Many,
    /// mcp-agent-mail from PyPI.
    AgentMail,
}

/// What is done with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Deed {
    /// send_message, as fast as it is answered.
    Send,
    /// send_message, 1,000 a second: what the archive's lag is promised at.
    Paced,
    /// fetch_inbox, a page of 20.
    Fetch,
    /// search_messages, a page of 20.
    Search,
    /// `waybill guard check`, from the start of its process to its end.
    Guard,
}

pub const fn name(house: House, deed: Deed) -> &'static str {
    match (house, deed) {
        (House::Few, Deed::Send) => "mail send",
        (House::Few, Deed::Paced) => "mail send 1,000/s",
        (House::Few, Deed::Fetch) => "mail fetch",
        (House::Few, Deed::Search) => "mail search",
        (House::Few, Deed::Guard) => "mail guard",
        (House::Many, Deed::Send) => "mail send of 100 k",
        (House::Many, Deed::Fetch) => "mail fetch of 100 k",
        (House::Many, _) => "mail search of 100 k",
        (House::AgentMail, Deed::Send) => "agent-mail send",
        (House::AgentMail, _) => "agent-mail fetch",
    }
}
