//! Misbehaving clients of the API, and their effect on other clients.

use crate::common::{
    Scratch, TARGET, TEST_TIMEOUT, ask, daemon, exchange, parse, serve, serve_daemon,
};
use lunar_control::http::{Address, HttpLimits, HttpServer};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

fn start(scratch: &Scratch, limits: HttpLimits) -> HttpServer {
    serve(&format!("unix:{}", scratch.path("api.sock").display()), None, None, limits)
}

fn connect(server: &HttpServer) -> UnixStream {
    let Address::Unix(path) = server.address() else { panic!("a unix socket") };
    let stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    stream
}

/// Goal: an invalid request is refused, and the next request is answered.
#[test]
fn nonsense_is_refused() {
    let scratch = Scratch::new("nonsense");
    let server = start(&scratch, HttpLimits::default());
    let long = format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "a".repeat(1 << 20));
    let header = format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "a".repeat(1 << 20));
    let many = format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "a: b\r\n".repeat(5000));
    for bytes in [
        &b""[..],
        b"\0\0\0\0",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"POST /api/v1/status HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        long.as_bytes(),
        header.as_bytes(),
        many.as_bytes(),
    ] {
        let mut stream = connect(&server);
        let _ = stream.write_all(bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{bytes:?}: {answer}");
        let (status, _) = ask(server.address(), "GET", "/api/v1/status", "");
        assert_eq!(status, 200);
    }
}

/// Goal: connections whose heads come too slowly, or that are idle, are closed in time.
#[test]
fn slow_heads_are_cut() {
    let scratch = Scratch::new("slow");
    let head_time = Duration::from_secs(2);
    let server = start(&scratch, HttpLimits { head_time, ..HttpLimits::default() });
    for bytes in [&b""[..], b"GET /api/v1/status HT", b"GET /api/v1/status HTTP/1.1\r\nHost: "] {
        let started = Instant::now();
        let mut stream = connect(&server);
        // On a busy machine the connection may be closed before the write.
        let _ = stream.write_all(bytes);
        if let Err(error) = stream.read_to_end(&mut Vec::new()) {
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}");
        }
        assert!(started.elapsed() >= head_time, "it was given its time");
    }
    let (started, mut answer) = (Instant::now(), String::new());
    // A request whose own head was late, on a busy machine, is repeated.
    while !answer.starts_with("HTTP/1.1 200") {
        assert!(
            started.elapsed() < TEST_TIMEOUT,
            "an idle connection ends, after its answer: {answer}"
        );
        let request = b"GET /api/v1/status HTTP/1.1\r\nHost: a\r\n\r\n";
        answer = exchange(server.address(), request);
    }
}

/// Goal: clients that hold every slot delay others only for the maximum time of a head.
#[test]
fn slots_held_by_silent_clients_are_freed() {
    let scratch = Scratch::new("places");
    let limits =
        HttpLimits { connections: 4, head_time: Duration::from_secs(1), ..HttpLimits::default() };
    let server = start(&scratch, limits);
    let held: Vec<_> = (0..20).map(|_| connect(&server)).collect();
    let (status, _) = ask(server.address(), "GET", "/api/v1/status", "");
    assert_eq!(status, 200);
    drop(held);
}

/// Goal: a refused client holds no slot: the connection ends with the refusal, long before the
/// timeout for the next head would end it.
#[test]
fn refused_clients_are_disconnected() {
    let scratch = Scratch::new("refused");
    let token = scratch.path("token");
    std::fs::write(&token, "0123456789abcdef").unwrap();
    let limits = HttpLimits { head_time: 4 * TEST_TIMEOUT, ..HttpLimits::default() };
    let server = serve("127.0.0.1:0", None, Some(&token), limits);
    for (head, status) in [
        ("Host: 127.0.0.1", 401),
        ("Host: 127.0.0.1\r\nAuthorization: Bearer 0123456789abcdeX", 401),
        ("Host: evil.example", 403),
        ("Host: 127.0.0.1\r\nOrigin: http://evil.example", 403),
    ] {
        let request = format!("GET /api/v1/status HTTP/1.1\r\n{head}\r\n\r\n");
        // `exchange` reads until the server closes the connection.
        assert_eq!(parse(&exchange(server.address(), request.as_bytes())).0, status, "{head}");
    }
}

/// Fault: silent connections from five addresses of this machine took all slots, and made the API
/// and the metrics unreachable for as long as they reconnected. Now they are closed for new ones.
#[test]
fn silent_clients_are_closed_for_new_ones() {
    let limits = HttpLimits {
        connections: 8,
        connections_per_address: 3,
        head_time: 4 * TEST_TIMEOUT,
        ..HttpLimits::default()
    };
    let server = serve("127.0.0.1:0", None, None, limits);
    let Address::Tcp(address) = *server.address() else { panic!("a TCP port") };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let connect_from = |host: u8| {
        let connected = runtime.block_on(async {
            let socket = tokio::net::TcpSocket::new_v4().unwrap();
            socket.bind(format!("127.0.0.{host}:0").parse().unwrap()).unwrap();
            socket.connect(address).await.unwrap().into_std().unwrap()
        });
        connected.set_nonblocking(false).unwrap();
        connected.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        connected
    };
    let mut held: Vec<_> = (0..20).map(|number| connect_from(1 + number % 5)).collect();
    // All but the last three, the maximum for one address, are closed: loopback is one address.
    for stream in &mut held[..17] {
        assert_eq!(stream.read(&mut [0; 1]).unwrap_or(0), 0);
    }
    let mut other = connect_from(6);
    other.write_all(b"GET /api/v1/status HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").unwrap();
    let mut start = [0; 12];
    other.read_exact(&mut start).unwrap();
    assert_eq!(&start, b"HTTP/1.1 200");
    drop(held);
}

/// Fault: a body was charged with its announced size before it arrived. 64 connections that
/// announced 4 MiB took 256 MiB, and initiators got BUSY.
#[test]
fn announced_bodies_take_no_memory() {
    const CLIENTS: usize = 32;
    let scratch = Scratch::new("announced");
    let daemon = daemon();
    let used_bytes = || daemon.server().buffers().budget().usage().used_bytes;
    let address = format!("unix:{}", scratch.path("api.sock").display());
    let limits = HttpLimits::default();
    let server = serve_daemon(Arc::clone(&daemon), &address, None, None, limits);
    let before = used_bytes();
    let clients: Vec<_> = (0..CLIENTS).map(|_| connect(&server)).collect();
    for mut client in &clients {
        let request = "POST /api/v1/apply HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n\
             Content-Type: application/json\r\nContent-Length: 4194304\r\n\r\n";
        client.write_all(request.as_bytes()).unwrap();
        let mut answer = [0; 12];
        client.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"HTTP/1.1 100", "the body is being received");
    }
    assert!(used_bytes() - before < CLIENTS * (64 << 10), "{}", used_bytes() - before);
    // A request with a short body is carried out meanwhile.
    let body = "Content-Type: application/json\r\n\r\n{\"iops\": 100}";
    let path = format!("/api/v1/targets/{TARGET}/luns/0/limit");
    let (status, answer) = ask(server.address(), "PUT", &path, body);
    assert_eq!(status, 200, "{answer}");
    drop(clients);
}

/// Goal: a client that does not read a long answer is disconnected, and its slot is free again.
#[test]
fn clients_that_do_not_read_are_disconnected() {
    let scratch = Scratch::new("stall");
    let limits = HttpLimits {
        connections: 1,
        stall_time: Duration::from_millis(300),
        ..HttpLimits::default()
    };
    let server = start(&scratch, limits);
    let mut stream = connect(&server);
    stream.set_write_timeout(Some(Duration::from_secs(2))).unwrap();
    // Requests are pipelined until the server stops writing, and therefore reading.
    let one = b"GET /api/v1/openapi.json HTTP/1.1\r\nHost: a\r\n\r\n";
    while stream.write_all(one).is_ok() {}
    let (status, _) = ask(server.address(), "GET", "/api/v1/status", "");
    assert_eq!(status, 200);
}

/// Goal: the server ends at once even with connected clients, and removes its socket.
#[test]
fn a_shutdown_does_not_wait_for_clients() {
    let scratch = Scratch::new("end");
    let limits = HttpLimits { head_time: 4 * TEST_TIMEOUT, ..HttpLimits::default() };
    let server = start(&scratch, limits);
    let mut stream = connect(&server);
    stream.write_all(b"GET /api/v1/sta").unwrap();
    let started = Instant::now();
    drop(server);
    assert!(started.elapsed() < TEST_TIMEOUT, "{:?}", started.elapsed());
    assert!(!scratch.path("api.sock").exists());
    assert_eq!(stream.read(&mut [0; 1]).unwrap_or(0), 0);
}
