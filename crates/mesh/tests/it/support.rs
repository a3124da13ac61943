//! A mesh with members that hold real keys.

use std::sync::Arc;

use waybill_kernel::entropy::OsEntropy;
use waybill_kernel::id::Uuid;
use waybill_kernel::{Caller, Code, Error, IdSource, Result};
use waybill_mesh::ops::manage::CreateMesh;
use waybill_mesh::ops::members::{AskToJoin, IssueInvite, IssuedInvite, JoinMesh, Joined};
use waybill_mesh::ops::messages::{AcceptMessage, Accepted};
use waybill_mesh::ops::topics::{CreateTopic, Subscribe};
use waybill_mesh::{Membership, authenticate, guest};
use waybill_mesh_protocol::join::{JoinProof, Joining};
use waybill_mesh_protocol::{Destination, Envelope, Identity, Invite, MemberId, MeshId, PublicKey, TopicName};
use waybill_store::effects::{Holder, Sweep, sweep_once};
use waybill_store::{Flow, Operation, Procedure, Reply};
use waybill_testkit::stores::{TestStore, readable};

pub const SERVER: &str = "http://127.0.0.1:8080";

/// A member and the keys it holds.
#[derive(Clone)]
pub struct Person {
    pub identity: Identity,
    pub membership: Membership,
}

impl Person {
    pub fn mesh(&self) -> MeshId {
        self.membership.mesh
    }

    pub fn id(&self) -> MemberId {
        self.membership.member
    }

    pub fn key(&self) -> PublicKey {
        self.identity.public_key()
    }

    pub fn caller(&self) -> &Caller {
        &self.membership.caller
    }
}

/// Whatever a call answered, if it was not refused.
pub async fn run<O: Operation>(on: &TestStore, caller: &Caller, operation: O) -> Result<O::Output> {
    match on.store.run(operation, caller.clone()).await? {
        Reply::Done(answer) | Reply::Replay(answer) | Reply::Empty { answer, .. } => Ok(answer),
    }
}

pub async fn ok<O: Operation>(on: &TestStore, caller: &Caller, operation: O) -> O::Output {
    run(on, caller, operation).await.map_err(readable).unwrap()
}

pub async fn refused<O: Operation>(on: &TestStore, caller: &Caller, operation: O) -> Code {
    match run(on, caller, operation).await {
        Ok(_) => panic!("{} was allowed", <O as Operation>::SPEC.name),
        Err(error) => error.code(),
    }
}

async fn member(on: &TestStore, mesh: MeshId, identity: Identity) -> Person {
    let membership = authenticate(&on.store, mesh, identity.public_key()).await.unwrap().unwrap();
    Person { identity, membership }
}

/// A mesh of the caller's tenant, and its owner.
pub async fn mesh_of(on: &TestStore, caller: &Caller, slug: &str, plaintext: bool) -> Person {
    let identity = Identity::generate(&OsEntropy);
    let mut create = CreateMesh::new(slug.parse().unwrap(), "alice".parse().unwrap(), identity.public());
    create.plaintext = plaintext;
    let made = ok(on, caller, create).await;
    member(on, made.mesh_id, identity).await
}

pub async fn plain_mesh(on: &TestStore) -> Person {
    mesh_of(on, &on.admin, "team", true).await
}

pub async fn issue(on: &TestStore, owner: &Person, uses: u32) -> IssuedInvite {
    let invite = IssueInvite { mesh: owner.mesh(), member: owner.id(), uses: Some(uses), expires_in_s: None };
    ok(on, owner.caller(), invite).await
}

/// As the owner hands it out.
pub fn signed(owner: &Person, issued: &IssuedInvite) -> String {
    invite_of(issued).sign(&owner.identity).unwrap()
}

pub fn invite_of(issued: &IssuedInvite) -> Invite {
    Invite {
        server: SERVER.to_owned(),
        mesh: issued.mesh,
        slug: issued.slug.clone(),
        invite_id: issued.invite_id,
        owner: issued.owner,
        issuer: issued.issuer,
        uses: issued.uses,
        expires_at: issued.expires_at,
        plaintext: issued.plaintext,
    }
}

/// All that a joiner does, with the challenge it was given.
pub async fn request(on: &TestStore, invite: &str, identity: &Identity, name: &str) -> (Caller, JoinMesh) {
    let parsed = Invite::parse(invite).unwrap();
    let caller = guest(&on.store, parsed.mesh).await.unwrap().unwrap();
    let challenge = ok(on, &caller, AskToJoin::new(parsed.mesh)).await;
    let name = name.parse().unwrap();
    let joining = Joining { mesh: parsed.mesh, invite: parsed.invite_id, name: &name };
    let proof = JoinProof::make(identity, &challenge, joining, &OsEntropy).unwrap();
    let nonce = challenge.nonce;
    let join = JoinMesh { invite: invite.to_owned(), name, keys: identity.public(), nonce, proof, ttl_s: None };
    (caller, join)
}

pub async fn call<P: Procedure>(on: &TestStore, caller: &Caller, procedure: P) -> Result<(P::Output, bool)> {
    match procedure.call(&Flow::new(caller, &on.stores)).await?.0 {
        Reply::Done(answer) | Reply::Empty { answer, .. } => Ok((answer, false)),
        Reply::Replay(answer) => Ok((answer, true)),
    }
}

pub async fn join_with(on: &TestStore, invite: &str, identity: &Identity, name: &str) -> Result<Joined> {
    let (caller, join) = request(on, invite, identity, name).await;
    call(on, &caller, join).await.map(|(joined, _)| joined)
}

pub async fn join(on: &TestStore, owner: &Person, name: &str) -> Person {
    let invite = signed(owner, &issue(on, owner, 1).await);
    let identity = Identity::generate(&OsEntropy);
    join_with(on, &invite, &identity, name).await.map_err(readable).unwrap();
    member(on, owner.mesh(), identity).await
}

pub fn topic(name: &str) -> TopicName {
    name.parse().unwrap()
}

pub async fn create_topic(on: &TestStore, by: &Person, name: &str) {
    ok(on, by.caller(), CreateTopic { mesh: by.mesh(), member: by.id(), topic: topic(name) }).await;
}

pub async fn subscribe(on: &TestStore, who: &Person, name: &str) {
    ok(on, who.caller(), Subscribe { mesh: who.mesh(), member: who.id(), topic: topic(name) }).await;
}

pub fn post(name: &str, text: &str) -> Envelope {
    Envelope::new(Destination::topic(&topic(name)), text.as_bytes().to_vec())
}

pub fn dm(to: &Person, text: &str) -> Envelope {
    Envelope::new(Destination::dm(&to.key()), text.as_bytes().to_vec())
}

pub fn accept(from: &Person, id: &str, envelope: Envelope) -> AcceptMessage {
    AcceptMessage {
        mesh: from.mesh(),
        member: from.id(),
        key: from.key(),
        client_message_id: id.parse().unwrap(),
        envelope,
        request_fingerprint: None,
    }
}

/// What the broker answers, and whether it is a replay.
pub async fn send(on: &TestStore, from: &Person, id: &str, envelope: Envelope) -> Result<(Accepted, bool)> {
    call(on, from.caller(), accept(from, id, envelope)).await
}

pub async fn sent(on: &TestStore, from: &Person, id: &str, envelope: Envelope) -> Accepted {
    let (accepted, replay) = send(on, from, id, envelope).await.map_err(readable).unwrap();
    assert!(!accepted.duplicate && !replay, "{id} was there before");
    accepted
}

pub async fn refusal(on: &TestStore, from: &Person, id: &str, envelope: Envelope) -> Error {
    match send(on, from, id, envelope).await {
        Ok((accepted, _)) => panic!("{id} was taken: {accepted:?}"),
        Err(error) => error,
    }
}

pub async fn count(on: &TestStore, table: &str) -> i64 {
    on.count(&format!("SELECT count(*) FROM {table}")).await.unwrap()
}

/// Rows of all tables that a message consists of.
pub async fn rows(on: &TestStore) -> [i64; 5] {
    on.check_stored_bytes().await;
    let mut rows = [0; 5];
    for (rows, table) in
        rows.iter_mut().zip(["mesh_dedupe", "mesh_messages", "mesh_history", "mesh_deliveries", "mesh_mentions"])
    {
        *rows = count(on, table).await;
    }
    rows
}

pub fn new_id() -> Uuid {
    IdSource::new(&OsEntropy, waybill_kernel::Time::from_micros(1)).next()
}

/// One whole run of a sweep, due or not.
pub async fn sweep<S: Sweep>(on: &TestStore, sweep: S) -> u64 {
    sweep_once(&on.store, &Arc::new(sweep), Holder::new(&on.store)).await.map_err(readable).unwrap().rows
}

/// At least so long: the store's clock may be ahead of the wall's, and gives that back while time passes, by one in a hundred at most.
pub fn pass(on: &TestStore, seconds: u64) {
    on.time.pass(std::time::Duration::from_secs(seconds + seconds / 50 + 1));
}
