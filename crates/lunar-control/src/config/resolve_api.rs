//! Reads `[api]`: address, TLS files and token file of the API.

use super::api_options::{ApiListen, ApiOptions};
use super::file::TableReader;
use super::resolve::Resolver;
use crate::http::Address;
use crate::tls::TlsFiles;

/// Reads the section; relative paths are resolved like those of the file.
pub fn api(table: &mut TableReader<'_, '_>, resolver: &mut Resolver<'_>) -> ApiOptions {
    let listen = table.string("listen", &mut resolver.problems);
    let token_file = table.string("token_file", &mut resolver.problems);
    let tls = table.table("tls", &mut resolver.problems).and_then(|mut tls| {
        let certificate = tls.required("certificate_file", &mut resolver.problems);
        let key = tls.required("key_file", &mut resolver.problems);
        tls.finish(&[], &mut resolver.problems);
        let (certificate, key) = (certificate?.value, key?.value);
        Some(TlsFiles { certificate: resolver.path(&certificate), key: resolver.path(&key) })
    });
    table.finish(&[], &mut resolver.problems);
    let listen = listen.and_then(|text| {
        let read = ApiListen::parse(&text.value);
        resolver.ok_or_report("[api] listen", &text, read)
    });
    let listen = match listen {
        Some(ApiListen::At(Address::Unix(path))) => {
            ApiListen::At(Address::Unix(resolver.path(&path.to_string_lossy())))
        }
        Some(listen) => listen,
        None => ApiListen::Default,
    };
    let token_file = token_file.map(|text| resolver.path(&text.value));
    let options = ApiOptions { listen, tls, token_file };
    if let Err((what, hint)) = options.check() {
        resolver.problems.add(&table.span, what, Some(hint));
    }
    options
}
