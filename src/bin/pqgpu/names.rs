//! From arguments to the names of sources.

use std::path::Path;

use parquet_gpu::{Error, Result};

/// The files that an argument names: itself, or what its wildcards match, sorted.
///
/// # Errors
/// [`Error::NotFound`] when wildcards match nothing, [`Error::Argument`] when they make no sense.
pub fn expand(argument: &str) -> Result<Vec<String>> {
    // A file may well have a bracket in its name.
    let plain = argument.contains("://") || !argument.contains(['*', '?', '[']) || Path::new(argument).exists();
    if plain {
        return Ok(vec![argument.to_string()]);
    }
    let paths = glob::glob(argument).map_err(|error| Error::Argument(error.to_string()))?;
    let mut names = Vec::new();
    for path in paths {
        let path = path.map_err(|error| Error::Io { what: argument.into(), cause: error.into() })?;
        if !path.is_dir() {
            names.push(path.to_string_lossy().into_owned());
        }
    }
    if names.is_empty() {
        return Err(Error::NotFound { source_name: argument.into(), cause: "no file matches".into() });
    }
    Ok(names)
}

/// A path, or a URL without user, password and query, which may hold a signature.
pub fn shown(name: &str) -> String {
    let Some((scheme, rest)) = name.split_once("://") else { return name.to_string() };
    let rest = rest.split(['?', '#']).next().unwrap_or_default();
    let (authority, path) = rest.split_once('/').map_or((rest, None), |(authority, path)| (authority, Some(path)));
    let host = authority.rsplit('@').next().unwrap_or_default();
    // What is no port may be the start of a password with a slash in it.
    if !authority.contains('@') && host.split_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_err()) {
        return format!("{scheme}://…");
    }
    match path {
        Some(path) => format!("{scheme}://{host}/{path}"),
        None => format!("{scheme}://{host}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_not_shown() {
        assert_eq!(shown("s3://key:secret@bucket/a.parquet?X-Amz-Signature=1"), "s3://bucket/a.parquet");
        assert_eq!(shown("https://u@h:p@host"), "https://host");
        assert_eq!(shown("https://user:pass/word@host/x"), "https://…");
        assert_eq!(shown("http://localhost:8080/x"), "http://localhost:8080/x");
        assert_eq!(shown("dir/a?b@c.parquet"), "dir/a?b@c.parquet");
    }
}
