//! Images that come with messages, made smaller: a PNG becomes a lossless WebP where that has fewer bytes.
//!
//! Nothing of a picture is lost. What would be (animations, more than eight bits per colour) is kept as it came, and so is what is no
//! PNG: a photograph in JPEG without loss is several times as large as it was.

use std::io::Cursor;

use image::codecs::png::PngDecoder;
use image::codecs::webp::WebPEncoder;
use image::{ColorType, ImageDecoder, ImageEncoder, Limits};

const PNG: &[u8] = b"\x89PNG\r\n\x1a\n";
/// Of a WebP, in pixels.
const SIDE_MAX: u32 = 16_383;
/// Of a picture before it is written again: a small file may stand for a huge one.
const DECODED_BYTES_MAX: u64 = 50 << 20;

/// None where it is better kept as it is.
pub(crate) fn as_webp(content: &[u8]) -> Option<Vec<u8>> {
    if !content.starts_with(PNG) {
        return None;
    }
    let mut limits = Limits::default();
    limits.max_image_width = Some(SIDE_MAX);
    limits.max_image_height = Some(SIDE_MAX);
    limits.max_alloc = Some(DECODED_BYTES_MAX);
    let mut decoder = PngDecoder::with_limits(Cursor::new(content), limits).ok()?;
    if decoder.is_apng().ok()? || decoder.total_bytes() > DECODED_BYTES_MAX {
        return None;
    }
    let (color, (width, height)) = (decoder.color_type(), decoder.dimensions());
    if !matches!(color, ColorType::L8 | ColorType::La8 | ColorType::Rgb8 | ColorType::Rgba8) {
        return None;
    }
    let profile = decoder.icc_profile().ok()?;
    let mut pixels = vec![0; usize::try_from(decoder.total_bytes()).ok()?];
    decoder.read_image(&mut pixels).ok()?;
    let mut webp = Vec::new();
    let mut encoder = WebPEncoder::new_lossless(&mut webp);
    if let Some(profile) = profile {
        encoder.set_icc_profile(profile).ok()?;
    }
    encoder.encode(&pixels, width, height, color.into()).ok()?;
    (webp.len() < content.len()).then_some(webp)
}

#[cfg(test)]
mod tests {
    use image::ExtendedColorType;
    use image::codecs::png::{CompressionType, FilterType, PngEncoder};
    use image::codecs::webp::WebPDecoder;

    use super::*;

    fn png(pixels: &[u8], width: u32, height: u32, color: ExtendedColorType) -> Vec<u8> {
        let mut out = Vec::new();
        PngEncoder::new_with_quality(&mut out, CompressionType::Fast, FilterType::NoFilter)
            .write_image(pixels, width, height, color)
            .unwrap();
        out
    }

    #[test]
    fn a_png_becomes_a_smaller_webp_with_the_same_pixels() {
        let (width, height) = (64, 64);
        let pixels: Vec<u8> = (0..width * height).flat_map(|at| [at as u8, (at / 64) as u8, 7, 255]).collect();
        let original = png(&pixels, width, height, ExtendedColorType::Rgba8);
        let webp = as_webp(&original).expect("it is smaller");
        assert!(webp.starts_with(b"RIFF") && webp.len() < original.len());
        let decoder = WebPDecoder::new(Cursor::new(&webp)).unwrap();
        assert_eq!(decoder.dimensions(), (width, height));
        let has_alpha = decoder.color_type() == ColorType::Rgba8;
        let mut again = vec![0; decoder.total_bytes() as usize];
        decoder.read_image(&mut again).unwrap();
        let expected: Vec<u8> =
            if has_alpha { pixels } else { pixels.chunks(4).flat_map(|pixel| pixel[..3].to_vec()).collect() };
        assert_eq!(again, expected);
    }

    #[test]
    fn what_would_lose_something_or_is_no_picture_is_kept() {
        let deep = png(&vec![7; 16 * 16 * 6], 16, 16, ExtendedColorType::Rgb16);
        assert_eq!(as_webp(&deep), None, "sixteen bits per colour");
        assert_eq!(as_webp(b"\x89PNG\r\n\x1a\nnot really"), None);
        assert_eq!(as_webp(b"\xff\xd8\xff\xe0"), None);
        let small = png(&[1, 2, 3], 1, 1, ExtendedColorType::Rgb8);
        assert!(as_webp(&small).is_none_or(|webp| webp.len() < small.len()));
    }

    /// A head that promises 16,000 times 16,000 pixels: refused before anything of that size is made.
    #[test]
    fn a_bomb_is_not_decoded() {
        let mut bomb = png(&[0; 4], 2, 2, ExtendedColorType::L8);
        for at in [16, 20] {
            bomb[at..at + 4].copy_from_slice(&16_000_u32.to_be_bytes());
        }
        let mut crc = crc32(&bomb[12..29]).to_be_bytes();
        bomb[29..33].swap_with_slice(&mut crc);
        assert_eq!(as_webp(&bomb), None);
    }

    fn crc32(bytes: &[u8]) -> u32 {
        let step = |crc: u32, byte: &u8| {
            (0..8).fold(crc ^ u32::from(*byte), |crc, _| if crc & 1 == 1 { (crc >> 1) ^ 0xedb8_8320 } else { crc >> 1 })
        };
        !bytes.iter().fold(u32::MAX, step)
    }
}
