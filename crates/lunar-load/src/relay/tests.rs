#![allow(clippy::unwrap_used)] // a test may unwrap

use super::*;
use socket2::{Domain, Socket, Type};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Instant;

/// Returns test data: bytes less than 251 apart differ.
fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at % 251) as u8).collect()
}

/// Starts a target that sends all bytes back, and ends with the connection.
fn echo() -> (SocketAddr, JoinHandle<usize>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let thread = std::thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        let (mut buffer, mut bytes) = (vec![0; 64 << 10], 0);
        loop {
            match socket.read(&mut buffer) {
                Ok(0) | Err(_) => return bytes,
                Ok(read) => bytes += socket.write_all(&buffer[..read]).map_or(0, |()| read),
            }
        }
    });
    (address, thread)
}

/// Sends `bytes` through a relay to an echo and reads them back; returns the time taken.
fn round_trip_time(model: Model, bytes: usize) -> Duration {
    let (address, echo) = echo();
    let relay = Relay::start(model, address).unwrap();
    let mut socket = TcpStream::connect(relay.address()).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut sender = socket.try_clone().unwrap();
    let begin = Instant::now();
    let writer = std::thread::spawn(move || {
        sender.write_all(&pattern(bytes)).unwrap();
        sender.shutdown(Shutdown::Write).unwrap();
    });
    let mut back = Vec::new();
    socket.read_to_end(&mut back).unwrap();
    let took = begin.elapsed();
    writer.join().unwrap();
    assert!(back == pattern(bytes), "{} bytes were echoed, not unchanged", back.len());
    assert_eq!(echo.join().unwrap(), bytes);
    assert!(relay.processor_time() > Duration::ZERO);
    took
}

/// Goal: over real sockets all bytes arrive in order, never earlier than the delay, never faster
/// than the rate or the window allow, and ends are passed on. All bounds are lower bounds: a slow
/// machine cannot break them.
#[test]
fn real_sockets_keep_the_models_limits() {
    let delay = Duration::from_millis(5);
    let none = Model::default();
    round_trip_time(none, 3 << 20);
    let far = Model { delay: 20 * delay, ..none };
    let took = round_trip_time(far, 1);
    assert!(took >= 2 * far.delay, "{took:?}");
    let slow = Model { rate_bytes_per_second: Some(10_000_000), ..none };
    let took = round_trip_time(slow, 1 << 20);
    assert!(took >= Duration::from_millis(104), "10 MB/s carried 1 MiB in {took:?}");
    // 1 MiB is 16 windows; all but the first wait for a credit, 10 ms each.
    let narrow = Model { delay, window_bytes: Some(64 << 10), ..none };
    let took = round_trip_time(narrow, 1 << 20);
    assert!(took >= 15 * 2 * delay, "{took:?}");
}

/// Goal: a sender whose receiver takes nothing is stopped after a window and the buffers of the
/// sockets.
#[test]
fn a_full_window_stops_the_sender() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let window_bytes = Some(64 << 10);
    let model = Model { window_bytes, ..Model::default() };
    let relay = Relay::start(model, listener.local_addr().unwrap()).unwrap();
    let mut socket = TcpStream::connect(relay.address()).unwrap();
    let (_silent, _) = listener.accept().unwrap();
    socket.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
    let block = vec![0; 64 << 10];
    let mut sent = 0;
    while let Ok(written) = socket.write(&block) {
        sent += written;
        assert!(sent < 256 << 20, "the sender is not stopped");
    }
}

/// Goal: without a listener a connection is closed, and a dropped relay closes all connections.
#[test]
fn closed_relays_close_their_connections() {
    // Bound, so that no other process gets the port, but not listening.
    let nobody = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    nobody.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).unwrap();
    let address = nobody.local_addr().unwrap().as_socket().unwrap();
    let relay = Relay::start(Model::default(), address).unwrap();
    let mut socket = TcpStream::connect(relay.address()).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let result = socket.read(&mut [0]);
    assert!(
        matches!(&result, Ok(0))
            || result.is_err_and(|e| e.kind() == io::ErrorKind::ConnectionReset)
    );
    let (address, echo) = echo();
    let relay = Relay::start(Model::default(), address).unwrap();
    let mut socket = TcpStream::connect(relay.address()).unwrap();
    socket.write_all(b"x").unwrap();
    socket.read_exact(&mut [0]).unwrap();
    drop(relay);
    assert_eq!(echo.join().unwrap(), 1, "its connection to the target is closed");
    assert_eq!(socket.read(&mut [0]).unwrap_or(0), 0, "and the client's");
}
