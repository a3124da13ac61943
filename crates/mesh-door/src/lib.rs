//! The broker's protocols: the WebSocket of daemons and the signed requests of direct callers.
