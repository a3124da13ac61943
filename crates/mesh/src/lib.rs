//! The broker: meshes, members, topics, messages that are accepted once and delivered until they are acknowledged.
