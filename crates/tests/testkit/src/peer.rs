//! Connections from addresses that the test chooses.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with};

/// Connects to `to` from the address `from` of this machine, which all of 127.0.0.0/8 are.
/// Connecting, and each later read or write, fails after `limit`.
///
/// # Errors
///
/// If the connection is not accepted within that time.
pub fn connect_from(from: Ipv4Addr, to: SocketAddr, limit: Duration) -> io::Result<TcpStream> {
    // A child started meanwhile does not inherit it.
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
    bind(&socket, &SocketAddr::from((from, 0)))?;
    for kind in [Timeout::Send, Timeout::Recv] {
        set_socket_timeout(&socket, kind, Some(limit))?;
    }
    connect(&socket, &to)?;
    Ok(TcpStream::from(socket))
}
