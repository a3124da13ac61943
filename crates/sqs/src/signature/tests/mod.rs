//! Requests signed by `aws-sigv4`, as its own clients sign them, and what becomes of them when they are changed.

mod accepted;
mod altered;
mod malformed;
mod order;
mod signer;
mod vectors;
