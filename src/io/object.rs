//! Objects behind URLs, through `object_store`: ranged requests, waited for by the thread that wants the bytes.
//!
//! Requests run on a small runtime of their own, shared by the process, so that a caller may itself be inside one. How
//! many are under way at a time is up to the reading threads, each of which waits for one. Retries are `object_store`'s,
//! fewer and sooner than its own defaults.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use object_store::aws::AmazonS3Builder;
use object_store::client::{HttpError, HttpErrorKind};
use object_store::http::HttpBuilder;
use object_store::parse_url_opts;
use object_store::path::Path;
use object_store::{BackoffConfig, ClientOptions, GetOptions, GetRange, ObjectStore, ObjectStoreScheme, RetryConfig};
use tokio::runtime::{Builder, Runtime};
use url::{Position, Url};

use super::redact::{self, Secrets};
use crate::error::{Error, Result};

/// Threads that drive requests; they wait for the network and decrypt.
const RUNTIME_THREADS: usize = 2;

/// How often a request is made again that a server could not answer, or that never reached one, and how long is waited
/// before: at the longest 0.1, 0.2, 0.4 and 0.8 s. Nobody waits for more before a wrong address is called one, while a
/// store that asks to slow down is given a second.
const RETRIES: usize = 4;
const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(1);
const WAIT_GROWTH: f64 = 2.0;

/// No retry starts this long after the first request: some connections are not refused but time out.
const RETRY_TIMEOUT: Duration = Duration::from_secs(30);

/// Environment variables of `object_store`'s whose values may not show.
const SECRET_VARIABLES: [&str; 4] =
    ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_SSE_CUSTOMER_KEY_BASE64"];

/// An object of known length.
pub(super) struct Object {
    name: String,
    store: Arc<dyn ObjectStore>,
    path: Path,
    len: u64,
    /// Makes requests fail once the object has changed.
    tag: Option<String>,
    secrets: Secrets,
}

// Stores show URLs with passwords.
impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Object").field("name", &self.name).field("len", &self.len).finish_non_exhaustive()
    }
}

/// What a request fails with: `object_store`'s error, or ours.
type Failure = Box<dyn std::error::Error + Send + Sync>;

impl Object {
    /// Opens a URL with options from the environment.
    pub(super) fn open(url: &Url) -> Result<Self> {
        let name = redact::name(url);
        let mut secrets = Secrets::default();
        secrets.add_url(url);
        if has_user(url) {
            secrets.add(authorization(url).trim_start_matches("Basic "));
        }
        for variable in SECRET_VARIABLES {
            secrets.add(&std::env::var(variable).unwrap_or_default());
        }
        match store(url) {
            // A signature in the query is for one method, and that is GET.
            Ok((store, path)) => Self::of(name, store, path, secrets, url.query().is_none()),
            Err(error) => {
                let cause = secrets.describe(&error).into();
                Err(Error::NotFound { source_name: name, cause })
            }
        }
    }

    /// An object of a store that the caller has made.
    pub(super) fn from_store(store: Arc<dyn ObjectStore>, path: Path) -> Result<Self> {
        Self::of(path.to_string(), store, path, Secrets::default(), true)
    }

    fn of(name: String, store: Arc<dyn ObjectStore>, path: Path, secrets: Secrets, head: bool) -> Result<Self> {
        let metadata = {
            let (store, path) = (store.clone(), path.clone());
            wait(async move {
                if head {
                    let options = GetOptions { head: true, ..GetOptions::default() };
                    match store.get_opts(&path, options).await {
                        Ok(answer) => return Ok(answer.meta),
                        Err(error) if is_unreachable(&error) => return Err(error.into()),
                        // Some servers know only GET; the length is in the answer to any range.
                        Err(_) => (),
                    }
                }
                let options = GetOptions { range: Some(GetRange::Bounded(0..1)), ..GetOptions::default() };
                Ok::<_, Failure>(store.get_opts(&path, options).await?.meta)
            })
        };
        match metadata {
            Ok(metadata) => {
                // RFC 9110, 13.1.1: If-Match compares strongly, and a weak tag never matches.
                let tag = metadata.e_tag.filter(|it| !it.starts_with("W/"));
                Ok(Self { name, store, path, len: metadata.size, tag, secrets })
            }
            Err(error) => {
                let cause = secrets.describe(error.as_ref()).into();
                Err(Error::NotFound { source_name: name, cause })
            }
        }
    }

    /// URL or path without credentials.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Bytes.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Fills `target` from `offset`. The range lies in the object.
    pub(super) fn read_at(&self, offset: u64, target: &mut [u8]) -> Result<()> {
        if target.is_empty() {
            return Ok(());
        }
        let bytes = target.len();
        self.read(offset, target).map_err(|error| {
            let what = format!("{bytes} bytes at {offset} of {}", self.name);
            Error::io(what, self.secrets.describe(error.as_ref()))
        })
    }

    fn read(&self, offset: u64, target: &mut [u8]) -> Result<(), Failure> {
        let (sender, receiver) = mpsc::channel();
        let range = offset..offset + target.len() as u64;
        let (store, path, tag, len) = (self.store.clone(), self.path.clone(), self.tag.clone(), self.len);
        runtime()?.spawn(async move {
            if let Err(error) = request(store, path, tag, len, range, &sender).await {
                let _ = sender.send(Err(error)); // whoever asked has given up
            }
        });
        let (wanted, mut filled) = (target.len(), 0);
        // It ends when the request has let go of the sender.
        for part in receiver {
            let part: Bytes = part?;
            let place = target.get_mut(filled..filled + part.len());
            place.ok_or("the store sent more bytes than it was asked for")?.copy_from_slice(&part);
            filled += part.len();
        }
        if filled < wanted {
            return Err(format!("the store sent {filled} of {wanted} bytes").into());
        }
        Ok(())
    }
}

/// Requests a range and hands its parts on as they come.
async fn request(
    store: Arc<dyn ObjectStore>,
    path: Path,
    tag: Option<String>,
    len: u64,
    range: Range<u64>,
    sender: &Sender<Result<Bytes, Failure>>,
) -> Result<(), Failure> {
    let options = GetOptions { range: Some(GetRange::Bounded(range.clone())), if_match: tag, ..GetOptions::default() };
    let answer = store.get_opts(&path, options).await?;
    if answer.meta.size != len {
        return Err(format!("it has {} bytes now and had {len} when it was opened", answer.meta.size).into());
    }
    if answer.range != range {
        let Range { start, end } = answer.range;
        return Err(format!("the store sent bytes {start}..{end} instead").into());
    }
    let mut parts = answer.into_stream();
    while let Some(part) = parts.next().await {
        if sender.send(Ok(part?)).is_err() {
            break;
        }
    }
    Ok(())
}

/// The store that a URL names, and the object's path in it.
fn store(url: &Url) -> object_store::Result<(Arc<dyn ObjectStore>, Path)> {
    // A query belongs to each request, and only plain HTTP sends it: for a signed URL of S3 too, which needs no
    // credentials of ours. Users are only HTTP's.
    if matches!(url.scheme(), "http" | "https") && (url.query().is_some() || has_user(url)) {
        let mut base = url.clone();
        base.set_path("");
        base.set_fragment(None);
        let _ = base.set_username(""); // an HTTP URL has a host, so neither fails
        let _ = base.set_password(None);
        let mut options = ClientOptions::new().with_allow_http(url.scheme() == "http");
        if has_user(url) {
            let headers = HashMap::from([("authorization".to_string(), authorization(url))]);
            options = options.with_default_headers((&headers).try_into().map_err(|_| refuse("malformed user"))?);
        }
        let store = HttpBuilder::new().with_url(base).with_client_options(options).with_retry(retries()).build()?;
        return Ok((Arc::new(store), Path::from_url_path(url.path())?));
    }
    if url.query().is_some() || has_user(url) {
        // Ignoring it would read something else than was asked for, such as another version.
        return Err(refuse("only HTTP URLs have a query or a user"));
    }
    let aws =
        std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    let mut options: Vec<_> = aws.filter(|(name, _)| name.starts_with("AWS_")).collect();
    if url.scheme() == "http" {
        options.push(("allow_http".into(), "true".into())); // the URL says so itself
    }
    // `parse_url_opts` takes no retries, so those that make requests are built here, as it builds them.
    let (scheme, path) = ObjectStoreScheme::parse(url)?;
    let options = options.iter().map(|(key, value)| (key.to_ascii_lowercase(), value));
    match scheme {
        ObjectStoreScheme::AmazonS3 => {
            let builder = AmazonS3Builder::new().with_url(url.as_str()).with_retry(retries());
            let with = |builder: AmazonS3Builder, (key, value): (String, &String)| match key.parse() {
                Ok(key) => builder.with_config(key, value),
                Err(_) => builder,
            };
            Ok((Arc::new(options.fold(builder, with).build()?), path))
        }
        ObjectStoreScheme::Http => {
            let builder = HttpBuilder::new().with_url(&url[..Position::BeforePath]).with_retry(retries());
            let with = |builder: HttpBuilder, (key, value): (String, &String)| match key.parse() {
                Ok(key) => builder.with_config(key, value),
                Err(_) => builder,
            };
            Ok((Arc::new(options.fold(builder, with).build()?), path))
        }
        _ => {
            let (store, path) = parse_url_opts(url, options)?;
            Ok((Arc::from(store), path))
        }
    }
}

fn retries() -> RetryConfig {
    RetryConfig {
        backoff: BackoffConfig { init_backoff: FIRST_WAIT, max_backoff: LONGEST_WAIT, base: WAIT_GROWTH },
        max_retries: RETRIES,
        retry_timeout: RETRY_TIMEOUT,
    }
}

/// Whether no server was there to answer, so that asking in another way is of no use.
fn is_unreachable(error: &object_store::Error) -> bool {
    let chain = std::iter::successors(Some(error as &dyn std::error::Error), |error| error.source());
    let mut kinds = chain.filter_map(|error| error.downcast_ref::<HttpError>()).map(HttpError::kind);
    kinds.any(|kind| matches!(kind, HttpErrorKind::Connect | HttpErrorKind::Timeout))
}

fn has_user(url: &Url) -> bool {
    !url.username().is_empty() || url.password().is_some()
}

fn refuse(why: &str) -> object_store::Error {
    object_store::Error::Generic { store: "URL", source: why.into() }
}

/// The header's value for a URL's user and password: RFC 7617.
fn authorization(url: &Url) -> String {
    let user = [url.username(), url.password().unwrap_or_default()].map(redact::decode).join(":");
    format!("Basic {}", base64(user.as_bytes()))
}

/// RFC 4648, 4.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let encode = |part: &[u8]| {
        let bits = (0..3).fold(0, |bits, at| bits << 8 | u32::from(part.get(at).copied().unwrap_or(0)));
        let digit = |at: usize| match at <= part.len() {
            true => char::from(DIGITS[(bits >> (18 - 6 * at)) as usize & 63]),
            false => '=',
        };
        [digit(0), digit(1), digit(2), digit(3)]
    };
    bytes.chunks(3).flat_map(encode).collect()
}

/// The process's runtime for requests.
fn runtime() -> Result<&'static Runtime, String> {
    static RUNTIME: OnceLock<Result<Runtime, String>> = OnceLock::new();
    let build = || {
        let mut builder = Builder::new_multi_thread();
        let built = builder.worker_threads(RUNTIME_THREADS).thread_name("pqgpu-net").enable_all().build();
        built.map_err(|error| format!("no threads for requests: {error}"))
    };
    RUNTIME.get_or_init(build).as_ref().map_err(Clone::clone)
}

/// Runs a future on the runtime and waits for it.
fn wait<T: Send + 'static>(future: impl Future<Output = Result<T, Failure>> + Send + 'static) -> Result<T, Failure> {
    let (sender, receiver) = mpsc::channel();
    runtime()?.spawn(async move {
        let _ = sender.send(future.await); // the receiver waits below
    });
    receiver.recv().unwrap_or_else(|_| Err("the request was given up".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_is_not_there_is_given_up_in_less_than_two_seconds() {
        let RetryConfig { backoff, max_retries, .. } = retries();
        let waits = std::iter::successors(Some(backoff.init_backoff), |wait| Some(wait.mul_f64(backoff.base)));
        let longest: Duration = waits.take(max_retries).map(|wait| wait.min(backoff.max_backoff)).sum();
        assert!(longest < Duration::from_secs(2), "{longest:?}");
    }

    #[test]
    fn base64_as_in_rfc_4648() {
        for (text, encoded) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")] {
            assert_eq!(base64(text.as_bytes()), encoded);
        }
        assert_eq!(base64(&[0xfb, 0xff]), "+/8=");
    }
}
