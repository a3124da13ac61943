//! Create a mesh and its first member, who owns it. Whoever did not get the answer asks again with the same keys.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use waybill_kernel::{Code, Entropy, Error, Example, OperationSpec, Result, Route, Time};
use waybill_mesh_protocol::{MemberId, MemberKeys, MemberName, MeshId, Slug};
use waybill_store::{Ctx, Operation, Reply, Topic, Tx, Value};

use super::write;
use crate::events::{self, EventKind, NewEvent};
use crate::mesh::Policy;
use crate::{Settings, counters, members, metrics};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateMesh {
    /// Its name in the tenant: lower-case letters, digits and hyphens.
    pub slug: Slug,
    /// What the owner is called by the other members.
    pub name: MemberName,
    /// The owner's public keys.
    pub keys: MemberKeys,
    /// Let the broker read what is sent.
    #[serde(default)]
    pub plaintext: bool,
    /// What becomes of two live connections with one key.
    #[serde(default)]
    pub connection_policy: Policy,
    #[serde(skip)]
    #[schemars(skip)]
    secret: Option<[u8; 32]>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct CreatedMesh {
    pub mesh_id: MeshId,
    pub slug: String,
    /// The owner.
    pub member_id: MemberId,
    pub plaintext: bool,
    pub connection_policy: Policy,
    pub created_at: Time,
}

impl CreateMesh {
    pub fn new(slug: Slug, name: MemberName, keys: MemberKeys) -> Self {
        Self { slug, name, keys, plaintext: false, connection_policy: Policy::default(), secret: None }
    }

    /// The mesh that an earlier call of the same owner has made. Without it an answer that was lost would leave a mesh whose owner
    /// does not know its id.
    ///
    /// # Errors
    /// `already_exists` where the slug is of another mesh, or of one whose owner is a member no more.
    async fn made_before(&self, tx: &mut Tx<'_>) -> Result<Option<CreatedMesh>> {
        const FIND: &str = "SELECT mesh_id, owner, created_at FROM meshes WHERE tenant = $1 AND slug = $2";
        let Some(row) = tx.query_opt(FIND, &[Value::from(self.slug.as_str())]).await? else { return Ok(None) };
        let (mesh_id, member_id) = (MeshId::from_slice(row.bytes(0)?)?, MemberId::from_slice(row.bytes(1)?)?);
        let is_same = |owner: &members::Live| {
            owner.name == self.name.as_str() && owner.keys == self.keys && owner.plaintext == self.plaintext
        };
        match members::live(tx, mesh_id, member_id).await {
            Ok(owner) if is_same(&owner) => Ok(Some(CreatedMesh {
                mesh_id,
                slug: self.slug.to_string(),
                member_id,
                plaintext: owner.plaintext,
                connection_policy: owner.policy,
                created_at: row.time(2)?,
            })),
            Err(error) if error.code() != Code::MemberRevoked => Err(error),
            _ => Err(Error::new(Code::AlreadyExists, format!("There is a mesh {} already.", self.slug))),
        }
    }

    async fn insert(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>, mesh: MeshId, owner: MemberId) -> Result<()> {
        const INSERT: &str = "INSERT INTO meshes (tenant, mesh_id, slug, plaintext, policy, owner, join_secret, created_at, \
            created_by) SELECT $1, $2, $3, $4, $5, $6, $7, $8, $9 \
            WHERE (SELECT count(*) FROM meshes WHERE tenant = $1) < $10";
        let secret = self.secret.ok_or_else(|| Error::internal("a mesh's secret was not prepared"))?;
        let (max, created_by) = (ctx.settings::<Settings>().meshes_max, ctx.caller.principal.to_string());
        let params = [
            Value::from(mesh.as_bytes()),
            Value::from(self.slug.as_str()),
            Value::from(self.plaintext),
            Value::from(self.connection_policy.as_str()),
            Value::from(owner.as_bytes()),
            Value::from(&secret[..]),
            Value::from(ctx.now),
            Value::from(&created_by),
            Value::from(max),
        ];
        if tx.execute(INSERT, &params).await? == 1 {
            return Ok(());
        }
        metrics::capped("meshes");
        let message = format!("The tenant has {max} meshes, which is as many as it may have.");
        Err(Error::new(Code::TooManyMeshes, message).with("limit", max))
    }
}

impl Operation for CreateMesh {
    const SPEC: OperationSpec = OperationSpec {
        status: 201,
        title: "Create a mesh",
        description: "Makes a mesh of your tenant, whose first member and owner has the keys given. The owner invites others. \
            The same slug, name, keys and `plaintext` again are answered with the mesh that there is.",
        example: Example {
            arguments: r#"{"slug": "team", "name": "alice", "keys": {
                "ed25519": "8a88e3dd7409f195fd52db2d3cba5d72ca6709bf1d94121bf3748801b40f6f5c",
                "x25519": "ce8d3ad1ccb633ec7b70c17814a5c76ecd029685050d344745ba05870e587d59",
                "x25519_signature": "zIZu-PeKNfS0ENSjO2RLMqujYrMsJl8LbKAJU_r3XgsuTbW5TwKh07-6A_VdkRo1TewigPm1kvE_XrX5qi9mAw"}}"#,
            answer: r#"{"mesh_id": "0198c0de-1a2b-7c3d-8e4f-5a6b7c8d9e10", "slug": "team",
                "member_id": "0198c0de-1a2b-7c3d-8e4f-5a6b7c8d9e11", "plaintext": false,
                "connection_policy": "prefer_newest", "created_at": "2026-01-05T12:30:00.000000Z"}"#,
        },
        ..write("create_mesh", Route::post("/v1/meshes"))
    };
    const PREPARES: bool = true;
    const REPLAYS: bool = true;
    type Output = CreatedMesh;

    fn prepare(&mut self, entropy: &dyn Entropy) -> Result<()> {
        self.keys.verify()?;
        let mut secret = [0; 32];
        entropy.fill(&mut secret);
        self.secret = Some(secret);
        Ok(())
    }

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<CreatedMesh>> {
        tx.in_turn(Topic::new("mesh", ctx.caller.tenant, b"count")).await?;
        if let Some(made) = self.made_before(tx).await? {
            return Ok(Reply::Replay(made));
        }
        let (mesh, owner) = (MeshId(ctx.ids.next()), MemberId(ctx.ids.next()));
        self.insert(ctx, tx, mesh, owner).await?;
        counters::begin(tx, mesh).await?;
        members::insert(
            ctx,
            tx,
            mesh,
            &members::NewMember { id: owner, name: &self.name, keys: &self.keys, ttl: None },
        )
        .await?;
        let data = json!({ "name": self.name, "slug": self.slug, "plaintext": self.plaintext });
        events::record(ctx, tx, mesh, &[NewEvent::of(EventKind::MeshCreated, owner, data)]).await?;
        Ok(Reply::Done(CreatedMesh {
            mesh_id: mesh,
            slug: self.slug.to_string(),
            member_id: owner,
            plaintext: self.plaintext,
            connection_policy: self.connection_policy,
            created_at: ctx.now,
        }))
    }
}
