//! The broker over HTTP: requests that the member signs, for what is asked seldom or is too large for a frame.

use std::sync::Arc;
use std::time::Duration;

use reqwest::{Body, Client, Method, Response, Url};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use waybill_kernel::{Clock, Code, Entropy, Error, Result};
use waybill_mesh_protocol::request_signature::{BodyHash, RequestNonce, Signed};
use waybill_mesh_protocol::{Identity, MeshId, sign_request};

use crate::seal::Keyring;

/// How long an answer may take.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);
const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// Of one answer that is read as a whole.
const ANSWER_BYTES_MAX: usize = 8 << 20;

#[derive(Clone)]
pub struct Broker {
    http: Client,
    server: Url,
    mesh: MeshId,
    keyring: Keyring,
    clock: Arc<Clock>,
    entropy: Arc<dyn Entropy>,
}

impl Broker {
    pub fn new(
        server: &str,
        mesh: MeshId,
        keyring: Keyring,
        clock: Arc<Clock>,
        entropy: Arc<dyn Entropy>,
    ) -> Result<Self> {
        // The one provider of the whole program; one that is installed already stays.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut server = Url::parse(server).map_err(|error| Error::new(Code::ConfigInvalid, error.to_string()))?;
        if !server.path().ends_with('/') {
            server.set_path(&format!("{}/", server.path()));
        }
        let http = Client::builder()
            .connect_timeout(CONNECT_WITHIN)
            // A signed request is for this server and for no other.
            .redirect(reqwest::redirect::Policy::none())
            // A proxy set for the web has no business between us and the broker; the socket takes none either.
            .no_proxy()
            .build()
            .map_err(Error::internal)?;
        Ok(Self { http, server, mesh, keyring, clock, entropy })
    }

    /// `target` begins with `mesh/v1/`.
    pub async fn get<T: DeserializeOwned>(&self, target: &str) -> Result<T> {
        let request = self.signed(Method::GET, target, BodyHash::of(&[]), &self.keyring.identity())?;
        self.answer(request.timeout(ANSWER_WITHIN).send().await).await
    }

    pub async fn post<T: DeserializeOwned>(&self, target: &str, body: &impl Serialize) -> Result<T> {
        self.post_as(&self.keyring.identity(), target, body).await
    }

    /// Signed by keys that are not this member's present ones.
    pub async fn post_as<T: DeserializeOwned>(
        &self,
        identity: &Identity,
        target: &str,
        body: &impl Serialize,
    ) -> Result<T> {
        let body = serde_json::to_vec(body).map_err(Error::internal)?;
        let request = self.signed(Method::POST, target, BodyHash::of(&body), identity)?;
        let request = request.header("content-type", "application/json").body(body).timeout(ANSWER_WITHIN);
        self.answer(request.send().await).await
    }

    /// A body that is made while it is sent; its digest is known before.
    pub async fn upload<T: DeserializeOwned>(
        &self,
        target: &str,
        hash: BodyHash,
        bytes: u64,
        body: Body,
        within: Duration,
    ) -> Result<T> {
        let request = self.signed(Method::POST, target, hash, &self.keyring.identity())?;
        let request = request
            .header("content-type", "application/octet-stream")
            .header("content-length", bytes)
            // Said before the body, so that the broker knows the sender before it stores anything.
            .header("waybill-body-sha256", hash.to_string())
            .body(body)
            .timeout(within);
        self.answer(request.send().await).await
    }

    /// An answer that is read while it comes.
    pub async fn download(&self, target: &str, within: Duration) -> Result<Response> {
        let request = self.signed(Method::GET, target, BodyHash::of(&[]), &self.keyring.identity())?;
        let response = request.timeout(within).send().await.map_err(|error| self.lost(error))?;
        if response.status().is_success() {
            return Ok(response);
        }
        Err(self.refused(response).await)
    }

    fn signed(
        &self,
        method: Method,
        target: &str,
        body: BodyHash,
        identity: &Identity,
    ) -> Result<reqwest::RequestBuilder> {
        let url = self.server.join(target).map_err(Error::internal)?;
        let line = url.query().map_or_else(|| url.path().to_owned(), |query| format!("{}?{query}", url.path()));
        let signed = Signed { method: method.as_str(), target: &line, body };
        let nonce = RequestNonce::random(self.entropy.as_ref());
        let header = sign_request(identity, self.mesh, signed, self.clock.now(), nonce);
        Ok(self.http.request(method, url).header("authorization", header))
    }

    async fn answer<T: DeserializeOwned>(&self, sent: reqwest::Result<Response>) -> Result<T> {
        let response = sent.map_err(|error| self.lost(error))?;
        if !response.status().is_success() {
            return Err(self.refused(response).await);
        }
        let body = self.body(response).await?;
        serde_json::from_slice(&body).map_err(|error| self.stranger(&error.to_string()))
    }

    async fn body(&self, mut response: Response) -> Result<Vec<u8>> {
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| self.lost(error))? {
            if body.len() + chunk.len() > ANSWER_BYTES_MAX {
                return Err(self.stranger("its answer is too large"));
            }
            body.extend_from_slice(&chunk);
        }
        Ok(body)
    }

    /// The broker's error as ours. An answer that names no error of the catalogue decides nothing, whatever its status: a proxy
    /// between may have given it, and what the broker has done or would do is not known.
    async fn refused(&self, response: Response) -> Error {
        let status = response.status().as_u16();
        let body = match self.body(response).await {
            Ok(body) => serde_json::from_slice::<Value>(&body).unwrap_or_default(),
            Err(error) => return error,
        };
        let named = |name: &str| Code::ALL.iter().copied().find(|code| code.entry().code == name);
        let code = body["error"].as_str().and_then(named).unwrap_or(Code::Unavailable);
        let no_words = || format!("What answers at {} says {status}, and not why.", self.server);
        let message = body["message"].as_str().map_or_else(no_words, str::to_owned);
        let error = Error::new(code, message);
        match body["help"].as_str() {
            Some(cure) => error.with_cure(cure),
            None => error,
        }
    }

    fn lost(&self, error: reqwest::Error) -> Error {
        let error = error.without_url();
        let code = if error.is_connect() { Code::ServerUnreachable } else { Code::Unavailable };
        Error::new(code, format!("The broker at {} does not answer.", self.server)).because(error)
    }

    fn stranger(&self, cause: &str) -> Error {
        Error::new(Code::ServerUnreachable, format!("What answers at {} is no broker.", self.server)).because(cause)
    }
}
