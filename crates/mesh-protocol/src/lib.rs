//! What daemons and the broker say to each other: envelopes, frames, invites, signatures, boxes. No I/O.
