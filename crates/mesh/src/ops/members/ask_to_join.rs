//! The challenge that a joiner answers. Nothing is kept of it.

use schemars::JsonSchema;
use serde::Deserialize;
use waybill_kernel::{Entropy, Error, OperationSpec, Result};
use waybill_mesh_protocol::MeshId;
use waybill_mesh_protocol::challenge::ChallengeNonce;
use waybill_mesh_protocol::join::JoinChallenge;
use waybill_store::{Ctx, Operation, Reply, Tx, Value};

use crate::{join_secret, spec};

/// For a guest of the mesh's tenant ([`crate::guest`]).
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AskToJoin {
    pub mesh: MeshId,
    #[serde(skip)]
    #[schemars(skip)]
    random: Option<[u8; ChallengeNonce::BYTES]>,
}

impl AskToJoin {
    pub fn new(mesh: MeshId) -> Self {
        Self { mesh, random: None }
    }
}

/// The secret that challenges of the mesh are made with.
pub(super) async fn secret(tx: &mut Tx<'_>, mesh: MeshId) -> Result<Vec<u8>> {
    const SECRET: &str = "SELECT join_secret FROM meshes WHERE tenant = $1 AND mesh_id = $2";
    let row = tx.query_opt(SECRET, &[Value::from(mesh.as_bytes())]).await?;
    row.ok_or_else(|| Error::not_found("mesh"))?.bytes(0).map(<[u8]>::to_vec)
}

impl Operation for AskToJoin {
    const SPEC: OperationSpec = spec::read("ask_to_join");
    const PREPARES: bool = true;
    type Output = JoinChallenge;

    fn prepare(&mut self, entropy: &dyn Entropy) -> Result<()> {
        let mut random = [0; ChallengeNonce::BYTES];
        entropy.fill(&mut random);
        self.random = Some(random);
        Ok(())
    }

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<JoinChallenge>> {
        let random = self.random.as_ref().ok_or_else(|| Error::internal("a challenge was not prepared"))?;
        let secret = secret(tx, self.mesh).await?;
        let (challenge, _) = join_secret::challenge(&secret, join_secret::nonce(ctx.now, random))?;
        Ok(Reply::Done(challenge))
    }
}
