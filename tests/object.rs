//! Sources behind URLs: stores in memory, and HTTP servers of a few lines that behave, and that do not.
#![cfg(feature = "object-store")]
#![allow(clippy::unwrap_used)]

mod devices;

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use parquet::file::reader::ChunkReader;
use parquet_gpu::io::fetch::Fetcher;
use parquet_gpu::io::ledger::{Count, Ledger};
use parquet_gpu::io::object_store::memory::InMemory;
use parquet_gpu::io::object_store::{ObjectStore, ObjectStoreExt, PutPayload};
use parquet_gpu::plan::{RangePlan, Route, RouteReason};
use parquet_gpu::{Error, IoOptions, io::Source};

fn pattern(len: usize) -> Vec<u8> {
    (0..len as u64).map(|it| (it.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

fn range(read: std::ops::Range<u64>, slab_offset: Option<u64>, task_size: u64) -> RangePlan {
    let starts = (read.start..read.end).step_by(usize::try_from(task_size).unwrap());
    let tasks = starts.map(|start| start..read.end.min(start + task_size)).collect();
    let (route, reason) = (Route::Host, RouteReason::RemoteSource);
    RangePlan { bytes: read.clone(), read, wasted: 0, route, reason, slab_offset, tasks }
}

fn put(store: &InMemory, path: &str, bytes: &[u8]) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(store.put(&path.into(), PutPayload::from(bytes.to_vec()))).unwrap();
}

/// How a server answers.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Manner {
    /// As it should.
    Good,
    /// It knows GET alone.
    NoHead,
    /// Ranges are not for it: status 200 and everything.
    IgnoresRange,
    /// The connection ends in the middle of a body.
    Truncates,
    /// A shorter range than it was asked for, and it says so.
    ShortRange,
    /// The object has grown since it was opened.
    Grows,
    /// A range has more bytes than it should, without saying so.
    Verbose,
    /// Refuses, and repeats what it was sent.
    Echoes,
}

/// A server of one object.
struct Server {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    requests: Arc<Mutex<Vec<String>>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    fn new(bytes: Vec<u8>, manner: Manner) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, requests) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
        let (stopped, seen, bytes) = (stop.clone(), requests.clone(), Arc::new(bytes));
        let thread = std::thread::spawn(move || {
            let mut connections = Vec::new();
            while let Ok((connection, _)) = listener.accept() {
                if stopped.load(Ordering::Relaxed) {
                    break;
                }
                let (bytes, seen) = (bytes.clone(), seen.clone());
                connections.push(std::thread::spawn(move || answer(connection, &bytes, manner, &seen)));
            }
            connections.into_iter().for_each(|it| it.join().unwrap());
        });
        Self { address, stop, requests, thread: Some(thread) }
    }

    fn url(&self, credentials: &str, rest: &str) -> String {
        format!("http://{credentials}{}/{rest}", self.address)
    }

    fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        drop(TcpStream::connect(self.address));
        self.thread.take().unwrap().join().unwrap();
    }
}

/// Answers one request, and closes the connection. A client that goes away early is no failure of the test.
fn answer(connection: TcpStream, bytes: &[u8], manner: Manner, requests: &Mutex<Vec<String>>) {
    let mut head = String::new();
    let mut reader = BufReader::new(&connection);
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head).unwrap_or(0) == 0 {
            return;
        }
    }
    requests.lock().unwrap().push(head.clone());
    let is_head = head.starts_with("HEAD");
    let range = head.lines().find_map(|it| it.to_ascii_lowercase().strip_prefix("range: bytes=").map(String::from));
    let range = range.filter(|_| manner != Manner::IgnoresRange).map(|it| {
        let (first, last) = it.split_once('-').unwrap();
        first.parse::<usize>().unwrap()..last.parse::<usize>().unwrap() + 1
    });
    let (status, headers, mut body) = match (manner, range) {
        (Manner::NoHead, _) if is_head => ("405 Method Not Allowed", String::new(), Vec::new()),
        (Manner::Echoes, _) => ("403 Forbidden", String::new(), head.clone().into_bytes()),
        (_, None) => ("200 OK", String::new(), bytes.to_vec()),
        (_, Some(range)) => {
            let range = if manner == Manner::ShortRange { range.start..range.end - 1 } else { range };
            let total = bytes.len() + usize::from(manner == Manner::Grows);
            let content = format!("Content-Range: bytes {}-{}/{total}\r\n", range.start, range.end - 1);
            ("206 Partial Content", content, bytes[range].to_vec())
        }
    };
    if manner == Manner::Verbose && !is_head {
        body.push(0);
    }
    let length = body.len();
    if manner == Manner::Truncates {
        body.truncate(length / 2);
    }
    if is_head {
        body.clear();
    }
    let mut connection = &connection;
    let head = format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {length}\r\nConnection: close\r\n\r\n");
    let _ = connection.write_all(head.as_bytes()).and_then(|()| connection.write_all(&body));
}

/// A message with everything that `?` printing would show.
fn everything(error: &Error) -> String {
    let mut text = format!("{error} {error:?}");
    let mut cause = std::error::Error::source(error);
    while let Some(it) = cause {
        text = format!("{text} {it} {it:?}");
        cause = it.source();
    }
    text
}

#[test]
fn objects_of_a_store_are_read_by_ranges() {
    let data = pattern(100_000);
    let store = Arc::new(InMemory::new());
    put(&store, "dir/data.parquet", &data);
    let source = Source::from_store(store.clone(), "dir/data.parquet").unwrap();
    assert_eq!((source.name(), source.len(), source.file().is_none()), ("dir/data.parquet", 100_000, true));
    let mut target = vec![0; 1000];
    source.read_at(99_000, &mut target).unwrap();
    assert!(target == data[99_000..]);
    assert_eq!(source.read_at(99_001, &mut target).unwrap_err().kind(), "io");
    source.read_at(100_000, &mut []).unwrap();

    put(&store, "dir/data.parquet", &data[1..]);
    let error = source.read_at(0, &mut target).unwrap_err();
    assert_eq!(error.kind(), "io", "the object has changed: {error}");

    let store: Arc<dyn ObjectStore> = store;
    assert_eq!(Source::from_store(store, "missing").unwrap_err().kind(), "not_found");
}

#[test]
fn a_url_works_inside_another_runtime() {
    let server = Server::new(pattern(1000), Manner::Good);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let bytes = runtime.block_on(async {
        let mut target = vec![0; 10];
        Source::open(&server.url("", "data")).unwrap().read_at(990, &mut target).unwrap();
        target
    });
    assert!(bytes == pattern(1000)[990..]);
}

#[test]
fn ranges_over_http_reach_device_and_host() {
    let data = pattern(200_000);
    for manner in [Manner::Good, Manner::NoHead] {
        let server = Server::new(data.clone(), manner);
        for gpu in devices::devices_with(&[0, 1, 2]) {
            let source = Arc::new(Source::open(&server.url("", "dir/a%20file")).unwrap());
            assert_eq!((source.len(), source.name().ends_with("/dir/a%20file")), (200_000, true), "{}", source.name());
            let stream = gpu.new_stream().unwrap();
            let slab = gpu.alloc_slab(150_000, "a test").unwrap();
            let ledger = Arc::new(Ledger::default());
            let options = IoOptions::default().with_task_size(16 << 10);
            let mut fetcher = Fetcher::new(source, options, Some(gpu.clone()), ledger.clone());
            let ranges = [
                range(0..100_000, Some(0), 16 << 10),
                range(100_000..100_100, Some(100_000), 16 << 10),
                range(100_100..100_300, Some(100_100), 16 << 10),
                range(150_000..200_000, None, 16 << 10),
            ];
            let host = fetcher.fetch(&ranges, Some((&slab, &stream))).unwrap();
            assert!(host.get_bytes(150_000, 50_000).unwrap() == data[150_000..]);
            let mut seen = vec![0; 100_300];
            // SAFETY: synchronised before `seen` is read.
            unsafe { stream.copy_to_host(&mut seen, &slab, 0).unwrap() };
            stream.synchronize().unwrap();
            assert!(seen == data[..100_300]);
            let reasons = ledger.report().reasons;
            assert_eq!(reasons[&RouteReason::RemoteSource.to_string()], Count { ops: 7 + 1 + 1 + 4, bytes: 150_300 });
        }
    }
}

#[test]
fn servers_that_send_something_else_are_found_out() {
    for (manner, why) in [
        (Manner::IgnoresRange, "Range request not supported"),
        (Manner::Truncates, ""), // what the HTTP library says
        (Manner::ShortRange, "got"),
        (Manner::Grows, "1001 bytes now"),
        (Manner::Verbose, "more bytes"),
    ] {
        let server = Server::new(pattern(1000), manner);
        let source = Source::open(&server.url("", "data")).unwrap();
        assert_eq!(source.len(), 1000);
        let error = source.read_at(100, &mut [0; 500]).unwrap_err();
        assert_eq!(error.kind(), "io");
        let text = error.to_string();
        assert!(text.contains(why) && text.contains("500 bytes at 100 of http://127.0.0.1"), "{manner:?}: {text}");

        let ranges = [range(0..1000, None, 100)];
        let mut fetcher = Fetcher::new(Arc::new(source), IoOptions::default(), None, Arc::default());
        assert_eq!(fetcher.fetch(&ranges, None).unwrap_err().kind(), "io", "{manner:?}");
    }
}

/// Nobody listens at a port that was just let go of.
#[test]
fn a_refused_connection_is_soon_given_up() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    for rest in ["data", "data?signature=1"] {
        let error = Source::open(&format!("http://127.0.0.1:{port}/{rest}")).unwrap_err();
        let text = everything(&error);
        assert_eq!(error.kind(), "not_found", "{text}");
        assert!(text.contains("after 4 retries"), "{text}");
        // HEAD alone, where GET would find no more.
        assert_eq!(error.to_string().contains("performing HEAD"), rest == "data", "{text}");
    }
}

#[test]
fn credentials_are_sent_and_never_shown() {
    let secrets =
        ["bWU6czNjckB0LXBhc3M", "s3cr%40t-pass", "s3cr@t-pass", "deadbeef0123", "tok%2Fen/x", "tok/en/x", "X-Amz"];
    let url = |server: &Server| {
        server.url("me:s3cr%40t-pass@", "data?X-Amz-Signature=deadbeef0123&X-Amz-Security-Token=tok%2Fen/x")
    };
    let shows = |text: &str| secrets.iter().find(|it| text.contains(**it)).copied();

    let good = Server::new(pattern(1000), Manner::Good);
    let source = Source::open(&url(&good)).unwrap();
    assert_eq!(source.name(), good.url("", "data"));
    assert_eq!(shows(&format!("{source:?}")), None);
    let mut target = [0; 10];
    source.read_at(5, &mut target).unwrap();
    assert!(target == pattern(15)[5..]);
    let requests = good.requests();
    assert_eq!(requests.len(), 2, "a signed URL is for GET alone");
    for request in requests {
        assert!(request.starts_with("GET /data?X-Amz-Signature=deadbeef0123&X-Amz-Security-Token=tok%2Fen/x HTTP"));
        // RFC 7617 of "me:s3cr@t-pass".
        assert!(request.to_ascii_lowercase().contains("authorization: basic bwu6cznjckb0lxbhc3m="), "{request}");
    }
    let error = everything(&source.read_at(995, &mut target).unwrap_err());
    assert_eq!(shows(&error), None, "{error}");

    let echo = Server::new(pattern(1000), Manner::Echoes);
    let error = everything(&Source::open(&url(&echo)).unwrap_err());
    assert!(error.contains("403") && error.contains("[hidden]"), "the server's answer is told: {error}");
    assert_eq!(shows(&error), None, "{error}");

    for broken in [
        "http://me:s3cr%40t-pass@[/data",
        "http://me:s3cr@t-pass@host:99999/x?sig=deadbeef0123",
        "s3://b/k?v=deadbeef0123",
    ] {
        let error = everything(&Source::open(broken).unwrap_err());
        assert_eq!(shows(&error), None, "{error}");
    }
}

#[test]
fn file_urls_are_local_files() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a file");
    std::fs::write(&path, b"bytes").unwrap();
    let url = url::Url::from_file_path(&path).unwrap();
    let source = Source::open(url.as_str()).unwrap();
    assert_eq!((source.len(), source.file().is_some(), source.name()), (5, true, path.to_str().unwrap()));
    assert_eq!(Source::open("memory:///nothing").unwrap_err().kind(), "not_found");
    assert_eq!(Source::open("unknown://host/x").unwrap_err().kind(), "not_found");
}
