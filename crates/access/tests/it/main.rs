//! Access as the rest of the program sees it: through [`waybill_access::Access`] and the operations.

mod authenticate;
mod keys;
mod tenants;
mod world;
