//! The error catalogue: one table gives each error its stable code, its number in every protocol, and the cure.
//!
//! What a caller may see (`code`, `message`, `details`, the cure) and what only the log may see (`cause`) are
//! separate fields; nothing turns a cause into a message.

use std::fmt;

use serde_json::{Map, Value, json};

pub type Result<T> = std::result::Result<T, Error>;

/// One row of the catalogue. A retired code's name is never given to another meaning.
#[derive(Debug)]
pub struct Entry {
    pub code: &'static str,
    pub http: u16,
    /// JSON-RPC error code where the failure is the request's and not the tool's.
    pub mcp: i32,
    pub sqs: Sqs,
    pub exit: u8,
    pub title: &'static str,
    pub cure: &'static str,
}

/// The error as SQS clients know it. Its JSON protocol names the shape, its query protocol an older code, and SDKs look at
/// both; the status is SQS's own and often not the one that REST would give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sqs {
    pub shape: &'static str,
    pub query_code: &'static str,
    pub http: u16,
}

impl fmt::Display for Sqs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.shape)
    }
}

/// `("Shape", 400)` where the query code is the shape, `("Shape", "Code", 400)` where it is not.
macro_rules! sqs {
    ($shape:literal, $http:literal) => {
        sqs!($shape, $shape, $http)
    };
    ($shape:literal, $query_code:literal, $http:literal) => {
        Sqs { shape: $shape, query_code: $query_code, http: $http }
    };
}

macro_rules! catalogue {
    ($($variant:ident $code:literal $http:literal $mcp:literal ($($sqs:tt)+) $exit:literal $title:literal $cure:literal;)+) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Code { $($variant),+ }

        impl Code {
            pub const ALL: &'static [Code] = &[$(Code::$variant),+];

            pub const fn entry(self) -> &'static Entry {
                match self {
                    $(Code::$variant => &Entry {
                        code: $code,
                        http: $http,
                        mcp: $mcp,
                        sqs: sqs!($($sqs)+),
                        exit: $exit,
                        title: $title,
                        cure: $cure,
                    }),+
                }
            }
        }
    };
}

catalogue! {
    // variant             code                       http  mcp     sqs (shape, query code, http)     exit  title / cure
    InvalidRequest         "invalid_request"           400 -32602 ("InvalidParameterValue", 400)     2
        "The request is not valid." "Correct the field the message names and send it again.";
    InvalidCursor          "invalid_cursor"            400 -32602 ("InvalidParameterValue", 400)     2
        "The cursor is not one this list has given you." "Start again without a cursor, with the same filters.";
    Unauthorized           "unauthorized"              401 -32001 ("InvalidClientTokenId", 403)      3
        "No valid credential came with the request." "Send `Authorization: Bearer aga_…` with a key that is neither expired nor revoked.";
    Forbidden              "forbidden"                 403 -32003 ("AccessDenied", 403)              3
        "The credential does not allow this." "Use a key with the role and scope the message names.";
    NotFound               "not_found"                 404 -32004 ("ResourceNotFoundException", 404) 4
        "There is nothing by that name or id." "Check the id, and that the key belongs to the tenant that owns it.";
    MethodNotAllowed       "method_not_allowed"        405 -32601 ("InvalidAction", 400)             2
        "This path does not answer to this method." "See /docs for the methods of each path.";
    RequestTimeout         "request_timeout"           408 -32008 ("RequestTimeout", 408)            5
        "The request did not arrive in time." "Send the whole request at once, or in smaller parts.";
    LeaseInvalidOrExpired  "LEASE_INVALID_OR_EXPIRED"  409 -32009 ("InvalidParameterValue", 400)     6
        "The lease is not the live one of this task." "Stop work on the task; claim again for more.";
    InvalidStateTransition "INVALID_STATE_TRANSITION"  409 -32010 ("InvalidParameterValue", 400)     6
        "Its present state does not allow this." "Read it again and act on its present state.";
    AlreadyExists          "already_exists"            409 -32011 ("InvalidParameterValue", 400)     6
        "Something by that name exists already." "Choose another name, or use the one that exists.";
    PayloadTooLarge        "payload_too_large"         413 -32013 ("InvalidParameterValue", 400)     2
        "The request is larger than is allowed." "Store the data elsewhere and send a pointer to it.";
    ReceiptTooLarge        "receipt_too_large"         413 -32014 ("InvalidParameterValue", 400)     2
        "The receipt would be larger than a receipt may be." "Store the work elsewhere and send a pointer to it.";
    LocatabilityRequired   "locatability_required"     400 -32016 ("InvalidParameterValue", 400)     2
        "The completion does not say where the work can be found." "Send artifacts (pointers to the work) or a delivery_proof.";
    ParentRequired         "parent_required"           400 -32017 ("InvalidParameterValue", 400)     2
        "A receipt that ends an obligation must name it as its parent." "Name the receipt that it answers.";
    ParentNotFound         "parent_not_found"          400 -32018 ("InvalidParameterValue", 400)     2
        "A parent of the receipt does not exist or cannot be ended by it." "Check the id of the parent, and that its obligation is still open.";
    ChainBroken            "chain_broken"              409 -32019 ("InvalidParameterValue", 400)     8
        "The receipts are not as they were sealed." "Compare them with an earlier export; the findings say which receipts differ and how.";
    UnsupportedMediaType   "unsupported_media_type"    415 -32015 ("InvalidParameterValue", 400)     2
        "The body is not JSON." "Send JSON with `Content-Type: application/json`.";
    RateLimitExceeded      "rate_limit_exceeded"       429 -32029 ("ThrottlingException", 400)       5
        "Too many requests." "Wait for `retry_after` seconds, then send the same request again.";
    HeadersTooLarge        "headers_too_large"         431 -32031 ("InvalidParameterValue", 400)     2
        "The request's headers are too large or too many." "Send fewer or shorter headers.";
    Internal               "internal"                  500 -32603 ("InternalFailure", 500)           70
        "The server failed in a way it should not." "Retry with the same idempotency key; report the request id if it happens again.";
    Unavailable            "unavailable"               503 -32050 ("ServiceUnavailable", 503)        5
        "The write may or may not have been made." "Send the same request again with the same idempotency key: the answer will be the truth.";
    Overloaded             "overloaded"                503 -32051 ("ServiceUnavailable", 503)        5
        "The server has more work waiting than it accepts." "Nothing was done. Retry after a short pause.";
    StoreUnavailable       "store_unavailable"         503 -32052 ("ServiceUnavailable", 503)        5
        "The database cannot be reached or has stopped writing." "Nothing was done. Retry after a pause; the server's /readyz and its log say what is wrong.";
    ShuttingDown           "shutting_down"             503 -32053 ("ServiceUnavailable", 503)        5
        "The server is stopping." "Nothing was done. Retry against the next instance.";
    StorageFull            "storage_full"              507 -32054 ("ServiceUnavailable", 503)        5
        "There is no room left to write." "Nothing was done. Free space on the data folder's disk, then retry.";
    TooManyStoredBytes     "too_many_stored_bytes"     409 -32055 ("OverLimit", 403)                 6
        "The tenant has stored as many bytes as it may." "Delete what is not needed or let it expire, or have the operator raise the setting the message names.";
    ConfigInvalid          "config_invalid"            500 -32603 ("InternalFailure", 500)           78
        "The configuration is not valid." "Correct the setting the message names.";
    AddressUnusable        "address_unusable"          500 -32603 ("InternalFailure", 500)           76
        "The listening address cannot be used." "Stop the program that holds it, or choose another address.";
    DataFolderUnusable     "data_folder_unusable"      500 -32603 ("InternalFailure", 500)           73
        "The data folder cannot be used." "Check that it exists and is writable by this user, or choose another with --data.";
    DataFolderLocked       "data_folder_locked"        500 -32603 ("InternalFailure", 500)           75
        "Another process is using the data folder." "Stop the process the message names, or choose another folder with --data.";
    SchemaTooNew           "schema_too_new"            500 -32603 ("InternalFailure", 500)           77
        "The database was written by a newer version." "Start that version or a newer one; this one has changed nothing.";
    DatabaseUnusable       "database_unusable"         500 -32603 ("InternalFailure", 500)           74
        "The database cannot be used." "Follow the message; nothing was changed.";
    ServerUnreachable      "server_unreachable"        500 -32603 ("InternalFailure", 500)           69
        "No Waybill server answered." "Start one with `waybill serve`, or name the address of another.";
    UnsupportedStore       "unsupported_store"         500 -32603 ("InternalFailure", 500)           64
        "This command is not for this kind of store." "Use the tool the message names.";
    PathUnusable           "path_unusable"             500 -32603 ("InternalFailure", 500)           72
        "A file or folder cannot be used." "Check that it exists, who owns it and that its disk works, or choose another.";
    ChecksFailed           "checks_failed"             500 -32603 ("InternalFailure", 500)           79
        "Some checks have failed." "Follow the cures given with them, then run the command again.";
    Interrupted            "interrupted"               500 -32603 ("InternalFailure", 500)           130
        "The command was stopped before its end." "Nothing is left of what it had begun; start it again.";
    // Of queues, in the words of SQS.
    MissingParameter       "missing_parameter"         400 -32060 ("MissingParameter", 400)            2
        "The request lacks something it needs." "Add the parameter the message names.";
    QueueDoesNotExist      "queue_does_not_exist"      404 -32061
        ("QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue", 400) 4
        "There is no queue by that name." "Create it, or check its name and that the key belongs to the tenant that owns it.";
    QueueNameExists        "queue_name_exists"         409 -32062 ("QueueNameExists", "QueueAlreadyExists", 400) 6
        "A queue by that name exists with other attributes." "Name the attributes it has, or none, or choose another name.";
    InvalidAttributeName   "invalid_attribute_name"    400 -32063 ("InvalidAttributeName", 400)        2
        "There is no attribute by that name." "Leave out the attribute the message names.";
    InvalidAttributeValue  "invalid_attribute_value"   400 -32064 ("InvalidAttributeValue", 400)       2
        "An attribute cannot have that value." "Give the attribute the message names a value that it may have.";
    InvalidMessageContents "invalid_message_contents"  400 -32065 ("InvalidMessageContents", 400)      2
        "The message holds a character that no message may hold." "Encode what is not plain text, for example as base64.";
    ReceiptHandleIsInvalid "receipt_handle_is_invalid" 404 -32066 ("ReceiptHandleIsInvalid", 404)      4
        "The receipt handle is none that this queue has given." "Use the handle of the latest receive, unchanged, with the queue it came from.";
    OverLimit              "over_limit"                403 -32067 ("OverLimit", 403)                   5
        "The queue has as many messages in flight as it may have." "Delete messages that are done, or wait until their visibility ends.";
    MessageNotInflight     "message_not_inflight"      409 -32069
        ("MessageNotInflight", "AWS.SimpleQueueService.MessageNotInflight", 400) 6
        "The message is not in flight." "Receive it again: its visibility has ended and anybody may have it.";
    PurgeQueueInProgress   "purge_queue_in_progress"   429 -32070
        ("PurgeQueueInProgress", "AWS.SimpleQueueService.PurgeQueueInProgress", 403) 5
        "The queue was purged less than 60 seconds ago." "Wait until 60 seconds have passed since then.";
    EmptyBatchRequest      "empty_batch_request"       400 -32071
        ("EmptyBatchRequest", "AWS.SimpleQueueService.EmptyBatchRequest", 400) 2
        "The batch has no entries." "Send at least one entry.";
    TooManyEntriesInBatchRequest "too_many_entries_in_batch_request" 400 -32072
        ("TooManyEntriesInBatchRequest", "AWS.SimpleQueueService.TooManyEntriesInBatchRequest", 400) 2
        "The batch has more entries than a batch may have." "Send the entries in several batches.";
    BatchEntryIdsNotDistinct "batch_entry_ids_not_distinct" 400 -32073
        ("BatchEntryIdsNotDistinct", "AWS.SimpleQueueService.BatchEntryIdsNotDistinct", 400) 2
        "Two entries of the batch have the same id." "Give each entry an id of its own.";
    InvalidBatchEntryId    "invalid_batch_entry_id"    400 -32074
        ("InvalidBatchEntryId", "AWS.SimpleQueueService.InvalidBatchEntryId", 400) 2
        "The id of an entry is not one that an entry may have." "Use 1 to 80 letters, digits, hyphens and underscores.";
    BatchRequestTooLong    "batch_request_too_long"    400 -32075
        ("BatchRequestTooLong", "AWS.SimpleQueueService.BatchRequestTooLong", 400) 2
        "The messages of the batch are too large together." "Send the entries in several batches.";
    TooManyQueues          "too_many_queues"           403 -32076 ("OverLimit", 403)                   6
        "The tenant has as many queues as it may have." "Delete queues that are not used, or have the limit raised.";
    Throttling             "throttling"                429 -32085 ("Throttling", 400)                  5
        "The queue is used more often than its throttle allows." "Nothing was done. Wait for `retry_after` seconds, then send the same request again.";
    InvalidAction          "invalid_action"            400 -32077 ("InvalidAction", 400)               2
        "There is no such action." "Use an action of SQS's API of 2012-11-05.";
    MissingAction          "missing_action"            400 -32078 ("MissingAction", 400)               2
        "The request names no action." "Name one, as the SDKs for SQS do.";
    MissingAuthenticationToken "missing_authentication_token" 403 -32079 ("MissingAuthenticationToken", 403) 3
        "The request carries no signature." "Sign it with an access key; `waybill key create --sqs` makes one.";
    IncompleteSignature    "incomplete_signature"      400 -32080 ("IncompleteSignature", 400)         3
        "The signature cannot be read." "Sign with signature version 4, as the SDKs for SQS do.";
    InvalidClientTokenId   "invalid_client_token_id"   403 -32081 ("InvalidClientTokenId", 403)        3
        "No such access key id." "Use an access key that `waybill key create --sqs` has made and that has not ended.";
    SignatureDoesNotMatch  "signature_does_not_match"  403 -32082 ("SignatureDoesNotMatch", 403)       3
        "The signature is not that of this request." "Check the secret access key, the region, and that nothing on the way changes requests.";
    RequestTimeTooSkewed   "request_time_too_skewed"   403 -32083 ("RequestTimeTooSkewed", 403)        3
        "The time of the request is too far from the server's." "Set the clock of the client or of the server.";
    RequestExpired         "request_expired"           403 -32084 ("RequestExpired", 403)              3
        "The presigned request has expired." "Make another.";
    // Of webhooks.
    AddressRefused         "address_refused"           400 -32086 ("InvalidParameterValue", 400)       2
        "The server does not send anything there." "Name an address of the public internet, or have the operator set `webhooks.allow_private`.";
    TooManyWebhooks        "too_many_webhooks"         409 -32087 ("OverLimit", 403)                   6
        "The tenant has as many webhooks as it may have." "Delete one that is not needed, or have the operator raise `webhooks.endpoints_max`.";
    // Of mail, in the words of the servers that its clients know.
    InvalidAgentName       "INVALID_AGENT_NAME"        400 -32100 ("InvalidParameterValue", 400)       2
        "That is no name for an agent." "Use an adjective and a noun, as in GreenCastle, or leave the name out.";
    EmptyProgram           "EMPTY_PROGRAM"             400 -32101 ("InvalidParameterValue", 400)       2
        "`program` is empty." "Name the program that the agent runs in.";
    EmptyModel             "EMPTY_MODEL"               400 -32102 ("InvalidParameterValue", 400)       2
        "`model` is empty." "Name the model that the agent runs on.";
    AgentNameTaken         "AGENT_NAME_TAKEN"          409 -32103 ("InvalidParameterValue", 400)       6
        "The project has an agent of that name." "Choose another name, leave it out, or use register_agent to go on as that agent.";
    AgentRetired           "AGENT_RETIRED"             409 -32104 ("InvalidParameterValue", 400)       6
        "The agent is retired." "Use another agent, or bring it back with unretire_agent.";
    RecipientNotFound      "RECIPIENT_NOT_FOUND"       404 -32105 ("InvalidParameterValue", 400)       4
        "A recipient does not exist." "Correct the names, or have those agents registered; nobody was written to.";
    ContactRequired        "CONTACT_REQUIRED"          403 -32106 ("InvalidParameterValue", 400)       3
        "A recipient wants to be asked for contact first." "Make the calls the message names, then send again; nobody was written to.";
    ContactBlocked         "CONTACT_BLOCKED"           403 -32107 ("InvalidParameterValue", 400)       3
        "A recipient takes no messages." "Leave those recipients out; nobody was written to.";
    InvalidThreadId        "INVALID_THREAD_ID"         400 -32108 ("InvalidParameterValue", 400)       2
        "That is no name for a thread." "Use letters, digits, dots, underscores and hyphens, as in FEAT-123, or leave it out.";
    BroadcastDisabled      "BROADCAST_DISABLED"        400 -32109 ("InvalidParameterValue", 400)       2
        "Nothing is sent to everybody." "Name the recipients.";
    SenderTokenMismatch    "SENDER_TOKEN_MISMATCH"     403 -32110 ("InvalidParameterValue", 400)       3
        "The token is not the agent's." "Send the token that register_agent gave for this agent, or none if the agent is yours.";
    IdempotencyKeyConflict "IDEMPOTENCY_KEY_CONFLICT"  409 -32111 ("InvalidParameterValue", 400)       6
        "The key was used for another call." "Use a new key for a new call, or repeat the first one unchanged.";
    CursorExpired          "CURSOR_EXPIRED"            410 -32112 ("InvalidParameterValue", 400)       6
        "What came after the cursor has been forgotten." "Read the inbox with fetch_inbox, then follow it from `oldest_available_cursor` on.";
    CursorAhead            "CURSOR_AHEAD"              409 -32113 ("InvalidParameterValue", 400)       6
        "The cursor is ahead of everything there is." "The server was restored from an earlier state: read the inbox with fetch_inbox, then follow it from `tail_cursor` on.";
    TooManyProjects        "too_many_projects"         409 -32114 ("OverLimit", 403)                   6
        "The tenant has as many projects as it may have." "Use one that exists, or have the operator raise `mail.projects_max`.";
    TooManyAgents          "too_many_agents"           409 -32115 ("OverLimit", 403)                   6
        "The tenant has as many agents as it may have." "Go on as one that exists, or have the operator raise `mail.agents_max`.";
    TooManyContacts        "too_many_contacts"         409 -32116 ("OverLimit", 403)                   6
        "The agent has asked for as many contacts as it may." "Use another agent, or have the operator raise `mail.contacts_max`.";
    EmptyPaths             "EMPTY_PATHS"               400 -32117 ("InvalidParameterValue", 400)       2
        "No paths were given." "Name at least one path of the project.";
    TooManyPaths           "TOO_MANY_PATHS"            400 -32118 ("InvalidParameterValue", 400)       2
        "More paths were given than one call takes." "Reserve them in several calls, or reserve a folder by a pattern.";
    SuspiciousPattern      "SUSPICIOUS_PATTERN"        400 -32119 ("InvalidParameterValue", 400)       2
        "The pattern is absolute, leaves the project or covers all of it." "Name files and folders within the project, as in src/api/*.rs.";
    ReservationActive      "RESERVATION_ACTIVE"        409 -32120 ("InvalidParameterValue", 400)       6
        "The reservation is in use." "Ask its holder by mail, or wait until it expires.";
    TooManyReservations    "too_many_reservations"     409 -32121 ("OverLimit", 403)                   6
        "There are as many active reservations as there may be." "Release those that are not needed, or have the operator raise the limit the message names.";
    FeatureDisabled        "FEATURE_DISABLED"          403 -32122 ("InvalidParameterValue", 400)       3
        "This is switched off." "Have the operator set what the message names.";
    // Of the mesh's daemon, in the words of its contract.
    IdempotencyKeyReused   "idempotency_key_reused"    409 -32160 ("InvalidParameterValue", 400)       6
        "The message id is taken." "Read `conflict`; send something else under an id of its own.";
    DaemonBusy             "daemon_busy"               429 -32161 ("ThrottlingException", 400)         5
        "The daemon has as many requests in hand as it takes." "Nothing was done. Wait a moment, then send the same request again.";
    TooManyStreams         "too_many_streams"          429 -32162 ("ThrottlingException", 400)         5
        "The daemon has as many event streams open as it keeps." "Close one, then open this one again.";
    InsufficientStorage    "insufficient_storage"      507 -32163 ("ServiceUnavailable", 503)          5
        "The outbox has used its room." "Nothing was written. Let it drain, remove old payloads with `waybill daemon outbox prune --confirm`, or raise outbox.bytes_max.";
    HostChanged            "host_fingerprint_mismatch" 409 -32164 ("InvalidParameterValue", 400)       73
        "The daemon's folder was made on another host." "Run `waybill daemon accept-host` to keep its keys here, or `waybill daemon remint` for new keys and a new member.";
    DaemonRunning          "daemon_running"            409 -32165 ("InvalidParameterValue", 400)       75
        "Another daemon has this folder." "Stop it with `waybill daemon down`, or use it.";
    OutboxDamaged          "outbox_damaged"            500 -32166 ("InternalFailure", 500)             74
        "outbox.db is damaged, and nothing was changed in it." "Run `waybill daemon recover`, which saves what can be read of it.";
    NotRequeueable         "not_requeueable"           409 -32167 ("InvalidParameterValue", 400)       6
        "A message in that state cannot be sent anew." "Requeue works on messages that are dead or pending.";
    // Of the mesh's broker.
    TopicUnknown           "topic_unknown"             404 -32180 ("InvalidParameterValue", 400)       4
        "The mesh has no such topic." "Create it with `waybill mesh topics create`, or subscribe to one that exists.";
    MemberUnknown          "member_unknown"            404 -32181 ("InvalidParameterValue", 400)       4
        "The mesh has no such member." "Look for the member's name or key with `waybill mesh members`.";
    MemberRevoked          "member_revoked"            403 -32182 ("AccessDenied", 403)                3
        "The member's key was revoked, has left the mesh or was replaced." "Join again with a new invite, or sign with the key that has replaced this one.";
    NotSubscribed          "not_subscribed"            403 -32183 ("AccessDenied", 403)                3
        "Only subscribers post to a topic." "Subscribe to the topic, then send the message again.";
    DestinationUnknown     "destination_unknown"       400 -32184 ("InvalidParameterValue", 400)       2
        "The mesh has no such destination." "Send to a topic, to a member, or to a queue that the mesh's owner has allowed.";
    FingerprintMismatch    "fingerprint_mismatch"      400 -32185 ("InvalidParameterValue", 400)       2
        "The fingerprint is not that of the envelope." "Compute it again from the envelope as it is sent.";
    EpochPending           "epoch_pending"             503 -32186 ("ServiceUnavailable", 503)          5
        "The topic waits for a new key." "Nothing was done. Retry after a pause: a subscriber that is connected makes the key.";
    EpochUnknown           "epoch_unknown"             400 -32187 ("InvalidParameterValue", 400)       2
        "The topic has no such epoch, or not any more." "Fetch the topic's keys and encrypt the message with the newest.";
    TooManySubscribers     "too_many_subscribers"      409 -32188 ("OverLimit", 403)                   6
        "The topic has as many subscribers as an encrypted topic may have." "Use another topic, or have the operator raise `mesh.encrypted_subscribers_max`.";
    InviteInvalid          "invite_invalid"            403 -32189 ("AccessDenied", 403)                3
        "The mesh has not issued this invite." "Ask the owner of the mesh for an invite, and use it unchanged.";
    InviteExpired          "invite_expired"            403 -32190 ("AccessDenied", 403)                3
        "The invite has expired." "Ask the owner of the mesh for another.";
    InviteUsedUp           "invite_used_up"            403 -32191 ("AccessDenied", 403)                3
        "The invite was used as often as it may be." "Ask the owner of the mesh for another.";
    InviteVoid             "invite_void"               403 -32192 ("AccessDenied", 403)                3
        "Whoever issued the invite may invite nobody any more." "Ask the present owner of the mesh for another.";
    ChallengeExpired       "challenge_expired"         403 -32193 ("AccessDenied", 403)                3
        "The challenge was answered too late." "Ask for another and answer it at once.";
    ProofInvalid           "proof_invalid"             403 -32194 ("AccessDenied", 403)                3
        "It is not proven that the keys are the caller's own." "Sign and seal with the secret keys that belong to the public ones.";
    MemberAlreadyConnected "member_already_connected"  409 -32195 ("InvalidParameterValue", 400)       6
        "The member is connected already, and the mesh keeps the older connection." "End the other connection, or set the mesh's connection policy.";
    TooManyMeshes          "too_many_meshes"           409 -32196 ("OverLimit", 403)                   6
        "The tenant has as many meshes as it may have." "Use one that exists, or have the operator raise `mesh.meshes_max`.";
    TooManyMembers         "too_many_members"          409 -32197 ("OverLimit", 403)                   6
        "The mesh has as many members as it may have." "Revoke one that is not needed, or have the operator raise `mesh.members_max`.";
    TooManyTopics          "too_many_topics"           409 -32198 ("OverLimit", 403)                   6
        "The mesh has as many topics as it may have." "Use one that exists, or have the operator raise `mesh.topics_max`.";
    TooManyInvites         "too_many_invites"          409 -32199 ("OverLimit", 403)                   6
        "The mesh has as many open invites as it may have." "Wait until some expire, or have the operator raise `mesh.invites_max`.";
    TooManyFiles           "too_many_files"            409 -32200 ("OverLimit", 403)                   6
        "The mesh stores as much in files as it may." "Wait until some expire, or have the operator raise `mesh.files_bytes_max`.";
    // Of the daemon's link to the broker. Each ends the daemon, and its exit code says why.
    FeatureMissing         "feature_missing"           500 -32220 ("InternalFailure", 500)             80
        "The broker lacks a feature that the daemon needs." "Update the server, or start a daemon of its version.";
    FeatureParametersInvalid "feature_parameters_invalid" 500 -32221 ("InternalFailure", 500)          81
        "The broker describes a feature in a way that the daemon cannot read." "Run the same version on both sides.";
    FeatureParameterBelowFloor "feature_parameter_below_floor" 500 -32222 ("InternalFailure", 500)             82
        "The broker offers less than the daemon needs to keep its promises." "Have the operator raise the setting the message names.";
    ReplacedByNewerConnection "replaced_by_newer_connection" 409 -32223 ("InvalidParameterValue", 400) 83
        "Another daemon has connected with this member's key." "Stop one of the two; if this folder is a copy, run `waybill daemon remint` in one of them.";
    KeyRotationAborted     "key_rotation_aborted_archive_write_failed" 500 -32224 ("InternalFailure", 500) 73
        "The old key could not be archived, so nothing was rotated." "Make room in the daemon's folder and check who may write it, then rotate again.";
    // Of the mesh's protocol.
    BoxUnreadable          "box_unreadable"            400 -32240 ("InvalidParameterValue", 400)       2
        "The box does not open with this key, or is not as it was sealed." "Check that it was made for this key, and that nothing has changed it.";
    OutboxMaxAgeAboveDedupeWindow "outbox_max_age_above_dedupe_window" 500 -32241 ("InternalFailure", 500) 78
        "The outbox would go on trying after the broker has forgotten the ids." "Lower `outbox.max_age_seconds`, or have the operator raise the broker's retention of ids.";
    // Of the daemon's hooks, backups and service.
    HookRefused            "hook_refused"              403 -32245 ("AccessDenied", 403)                3
        "The hook pre-send refused the message." "Nothing was written. Follow what the hook says, or change it or its entry in hooks.toml.";
    DaemonUnreachable      "daemon_unreachable"        503 -32246 ("ServiceUnavailable", 503)          69
        "No daemon answers for this mesh." "Start one with `waybill daemon up --mesh <slug>`; `waybill daemon logs` says why it ended.";
    NotInCi                "not_in_ci"                 403 -32242 ("AccessDenied", 403)                3
        "This is not done in CI." "Run it on a host that stays, or unset the variable the message names.";
    // Of messages from a mesh to queues.
    QueueNeedsPlaintext    "queue_needs_plaintext"     400 -32243 ("InvalidParameterValue", 400)       2
        "Only a mesh in plain text sends to queues." "Send to a topic or to a member, or use a mesh that was made with `--plaintext`.";
    QueueElsewhere         "queue_elsewhere"           409 -32244 ("InvalidParameterValue", 400)       6
        "Other stores than the mesh's hold messages of the queue." "Use a queue whose partitions are all in home.";
}

impl Code {
    /// Refused because there is as much of something as there may be: what an operator counts, to see who needs more.
    pub const fn is_cap(self) -> bool {
        use Code::*;
        matches!(
            self,
            TooManyStoredBytes
                | OverLimit
                | TooManyQueues
                | TooManyWebhooks
                | TooManyProjects
                | TooManyAgents
                | TooManyContacts
                | TooManyReservations
                | TooManySubscribers
                | TooManyMeshes
                | TooManyMembers
                | TooManyTopics
                | TooManyInvites
                | TooManyFiles
        )
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.entry().code)
    }
}

#[derive(Debug)]
pub struct Error(Box<Inner>);

#[derive(Debug)]
struct Inner {
    code: Code,
    message: String,
    details: Map<String, Value>,
    cause: Option<String>,
    /// Where the catalogue's does not fit.
    cure: Option<String>,
}

impl Error {
    /// `message` says what happened, in words a caller may read.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Error(Box::new(Inner { code, message: message.into(), details: Map::new(), cause: None, cure: None }))
    }

    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(Code::InvalidRequest, message)
    }

    pub fn not_found(what: &str) -> Self {
        Self::new(Code::NotFound, format!("No such {what}."))
    }

    /// A fault of ours: the caller reads the catalogue's title, the log reads `cause`.
    pub fn internal(cause: impl fmt::Display) -> Self {
        Self::new(Code::Internal, Code::Internal.entry().title).because(cause)
    }

    /// What the log may see and a caller may not.
    #[must_use]
    pub fn because(mut self, cause: impl fmt::Display) -> Self {
        self.0.cause = Some(cause.to_string());
        self
    }

    /// What to do in this very case, where the catalogue speaks of another.
    #[must_use]
    pub fn with_cure(mut self, cure: impl Into<String>) -> Self {
        self.0.cure = Some(cure.into());
        self
    }

    /// A further field of the error object.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.0.details.insert(name.to_owned(), value.into());
        self
    }

    pub fn code(&self) -> Code {
        self.0.code
    }

    pub fn message(&self) -> &str {
        &self.0.message
    }

    pub fn cause(&self) -> Option<&str> {
        self.0.cause.as_deref()
    }

    /// What to do about it.
    pub fn cure(&self) -> &str {
        self.0.cure.as_deref().unwrap_or_else(|| self.0.code.entry().cure)
    }

    pub fn detail(&self, name: &str) -> Option<&Value> {
        self.0.details.get(name)
    }

    /// The object every door sends: `{error, message, help, …}`.
    pub fn to_json(&self) -> Value {
        let mut object = Map::new();
        object.insert("error".to_owned(), json!(self.0.code.entry().code));
        object.insert("message".to_owned(), json!(self.0.message));
        object.insert("help".to_owned(), json!(self.cure()));
        for (name, value) in &self.0.details {
            object.entry(name.as_str()).or_insert_with(|| value.clone());
        }
        Value::Object(object)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.0.code, self.0.message)
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// JSON-RPC's own: invalid params, internal error.
    const SHARED_NUMBERS: [i32; 2] = [-32602, -32603];

    #[test]
    fn codes_and_numbers_are_unique_and_every_entry_tells_what_to_do() {
        let (mut seen, mut numbers) = (HashSet::new(), HashSet::new());
        for code in Code::ALL {
            let entry = code.entry();
            assert!(seen.insert(entry.code), "{} stands twice", entry.code);
            let shared = SHARED_NUMBERS.contains(&entry.mcp);
            assert!(shared || numbers.insert(entry.mcp), "{}: another has {} already", entry.code, entry.mcp);
            assert!((400..600).contains(&entry.http), "{}", entry.code);
            assert!((400..600).contains(&entry.sqs.http), "{}", entry.code);
            assert!(entry.exit != 0 && entry.exit != 1, "{}: 1 is for panics", entry.code);
            assert!(entry.title.ends_with('.') && entry.cure.ends_with('.'), "{}", entry.code);
        }
    }

    #[test]
    fn a_cap_is_told_as_a_conflict_or_by_its_protocols_own_status() {
        let caps: Vec<Code> = Code::ALL.iter().copied().filter(|code| code.is_cap()).collect();
        assert!(caps.len() > 10, "{caps:?}");
        for code in caps {
            let entry = code.entry();
            assert!(matches!(entry.http, 403 | 409), "{}", entry.code);
            assert_eq!((entry.sqs.shape, entry.sqs.http), ("OverLimit", 403), "{}", entry.code);
        }
    }

    #[test]
    fn a_cure_of_its_own_takes_the_place_of_the_catalogues() {
        let plain = Error::not_found("task");
        assert_eq!((plain.cure(), &plain.to_json()["help"]), (Code::NotFound.entry().cure, &json!(plain.cure())));
        let own = plain.with_cure("Look elsewhere.");
        assert_eq!((own.cure(), &own.to_json()["help"]), ("Look elsewhere.", &json!("Look elsewhere.")));
    }

    #[test]
    fn a_cause_never_reaches_the_caller() {
        let error = Error::internal("password=hunter2").with("request", "r1");
        assert!(!error.to_json().to_string().contains("hunter2"));
        assert!(!error.to_string().contains("hunter2"));
        assert_eq!(error.cause(), Some("password=hunter2"));
    }
}
