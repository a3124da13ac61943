//! Images that come with messages, made smaller: PNG, JPEG and GIF become lossless WebP where that has fewer bytes.
//!
//! Nothing of a picture is lost. What would be (animations, more than eight bits per colour, notes that WebP has no place for) is kept as
//! it came. Few photographs become smaller without loss; drawings and pictures of screens do, whatever format they came in.

use std::io::Cursor;

use image::codecs::gif::GifDecoder;
use image::codecs::jpeg::JpegDecoder;
use image::codecs::png::PngDecoder;
use image::codecs::webp::WebPEncoder;
use image::{ColorType, ImageDecoder, ImageEncoder, Limits};

/// Of a WebP, in pixels.
const SIDE_MAX: u32 = 16_383;
/// Of a picture before it is written again: a small file may stand for a huge one.
const DECODED_BYTES_MAX: u64 = 50 << 20;
/// Of a JPEG, whose decoder keeps three times as much while it works. Larger ones are photographs, which stay in any case.
const JPEG_DECODED_BYTES_MAX: u64 = 16 << 20;

/// A format of pictures, by how its files begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Png,
    Jpeg,
    Gif,
    WebP,
}

impl Format {
    pub(crate) fn of(content: &[u8]) -> Option<Self> {
        match content {
            [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..] => Some(Format::Png),
            [0xff, 0xd8, 0xff, ..] => Some(Format::Jpeg),
            [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Some(Format::Gif),
            [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some(Format::WebP),
            _ => None,
        }
    }

    /// What its files are called, and their media type.
    pub(crate) const fn names(self) -> (&'static str, &'static str) {
        match self {
            Format::Png => ("png", "image/png"),
            Format::Jpeg => ("jpg", "image/jpeg"),
            Format::Gif => ("gif", "image/gif"),
            Format::WebP => ("webp", "image/webp"),
        }
    }
}

/// None where it is better kept as it is.
pub(crate) fn as_webp(content: &[u8]) -> Option<Vec<u8>> {
    let webp = match Format::of(content)? {
        Format::Png => {
            let decoder = PngDecoder::with_limits(Cursor::new(content), limits(DECODED_BYTES_MAX)).ok()?;
            if decoder.is_apng().ok()? {
                return None;
            }
            written(decoder, DECODED_BYTES_MAX)?
        }
        Format::Jpeg => {
            let mut decoder = JpegDecoder::new(Cursor::new(content)).ok()?;
            if decoder.xmp_metadata().ok()?.is_some() || decoder.iptc_metadata().ok()?.is_some() {
                return None;
            }
            written(decoder, JPEG_DECODED_BYTES_MAX)?
        }
        Format::Gif if is_animated(content)? => return None,
        Format::Gif => written(GifDecoder::new(Cursor::new(content)).ok()?, DECODED_BYTES_MAX)?,
        Format::WebP => return None,
    };
    (webp.len() < content.len()).then_some(webp)
}

fn limits(bytes_max: u64) -> Limits {
    let mut limits = Limits::default();
    limits.max_image_width = Some(SIDE_MAX);
    limits.max_image_height = Some(SIDE_MAX);
    limits.max_alloc = Some(bytes_max);
    limits
}

/// The picture as WebP, with its colour profile and what its camera wrote. The bound is compared with what the head promises,
/// before anything of that size is made.
fn written(mut decoder: impl ImageDecoder, bytes_max: u64) -> Option<Vec<u8>> {
    decoder.set_limits(limits(bytes_max)).ok()?;
    if decoder.total_bytes() > bytes_max {
        return None;
    }
    let (color, (width, height)) = (decoder.color_type(), decoder.dimensions());
    if !matches!(color, ColorType::L8 | ColorType::La8 | ColorType::Rgb8 | ColorType::Rgba8) {
        return None;
    }
    let (profile, exif) = (decoder.icc_profile().ok()?, decoder.exif_metadata().ok()?);
    let mut pixels = vec![0; usize::try_from(decoder.total_bytes()).ok()?];
    decoder.read_image(&mut pixels).ok()?;
    let mut webp = Vec::new();
    let mut encoder = WebPEncoder::new_lossless(&mut webp);
    if let Some(profile) = profile {
        encoder.set_icc_profile(profile).ok()?;
    }
    if let Some(exif) = exif {
        encoder.set_exif_metadata(exif).ok()?;
    }
    encoder.encode(&pixels, width, height, color.into()).ok()?;
    Some(webp)
}

/// Whether a GIF has a second picture. Its blocks are counted and nothing is decoded. None where they are not what they should be.
fn is_animated(content: &[u8]) -> Option<bool> {
    let mut options = gif::DecodeOptions::new();
    options.skip_frame_decoding(true);
    let mut decoder = options.read_info(content).ok()?;
    decoder.next_frame_info().ok()??;
    Some(decoder.next_frame_info().ok()?.is_some())
}

#[cfg(test)]
mod tests {
    use image::ExtendedColorType;
    use image::codecs::gif::GifEncoder;
    use image::codecs::jpeg::JpegEncoder;
    use image::codecs::png::{CompressionType, FilterType, PngEncoder};
    use image::codecs::webp::WebPDecoder;
    use image::{DynamicImage, Frame, RgbaImage};

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
        for head in [&b"\xff\xd8\xff\xe0"[..], b"GIF89a", b"GIF89a\x10\0\x10\0\0\0\0;"] {
            assert_eq!(as_webp(head), None);
        }
        let small = png(&[1, 2, 3], 1, 1, ExtendedColorType::Rgb8);
        assert!(as_webp(&small).is_none_or(|webp| webp.len() < small.len()));
    }

    fn pixels(content: &[u8]) -> RgbaImage {
        image::load_from_memory(content).unwrap().into_rgba8()
    }

    fn gif(frames: &[RgbaImage]) -> Vec<u8> {
        let mut out = Vec::new();
        GifEncoder::new(&mut out).encode_frames(frames.iter().cloned().map(Frame::new)).unwrap();
        out
    }

    /// Two colours in stripes: small without loss, and as JPEG larger for its tables alone.
    fn stripes() -> RgbaImage {
        RgbaImage::from_fn(64, 64, |x, _| image::Rgba(if x % 16 < 8 { [255, 255, 255, 255] } else { [0, 0, 128, 255] }))
    }

    #[test]
    fn gif_and_jpeg_become_webp_where_that_is_smaller_and_animations_stay() {
        let still = gif(&[stripes()]);
        let webp = as_webp(&still).expect("it is smaller");
        assert_eq!(pixels(&webp), pixels(&still));
        assert_eq!(as_webp(&gif(&[stripes(), RgbaImage::new(64, 64)])), None, "an animation");
        let mut jpeg = Vec::new();
        let picture = DynamicImage::from(stripes()).into_rgb8();
        JpegEncoder::new_with_quality(&mut jpeg, 100).encode_image(&picture).unwrap();
        let webp = as_webp(&jpeg).expect("it is smaller");
        assert_eq!(pixels(&webp), pixels(&jpeg));
        // What looks like noise is what JPEG is for.
        let noise =
            image::RgbImage::from_fn(64, 64, |x, y| image::Rgb([x * y, (x * x) ^ y, y * 7 + x * 3].map(|c| c as u8)));
        let mut photograph = Vec::new();
        JpegEncoder::new_with_quality(&mut photograph, 40).encode_image(&noise).unwrap();
        assert_eq!(as_webp(&photograph), None);
    }

    #[test]
    fn a_jpeg_keeps_what_its_camera_wrote() {
        let mut jpeg = Vec::new();
        let mut encoder = JpegEncoder::new_with_quality(&mut jpeg, 100);
        // Turned by a quarter: orientation 6, in the form of TIFF.
        let exif = b"MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0".to_vec();
        encoder.set_exif_metadata(exif.clone()).unwrap();
        encoder.encode_image(&DynamicImage::from(stripes()).into_rgb8()).unwrap();
        let webp = as_webp(&jpeg).expect("it is smaller");
        assert_eq!(WebPDecoder::new(Cursor::new(&webp)).unwrap().exif_metadata().unwrap(), Some(exif));
    }

    /// Heads that promise more than may be made, in each format.
    #[test]
    fn bombs_of_other_formats_are_not_decoded() {
        let mut jpeg = Vec::new();
        JpegEncoder::new(&mut jpeg).encode_image(&DynamicImage::from(stripes()).into_rgb8()).unwrap();
        assert!(as_webp(&jpeg).is_some());
        let frame = jpeg.windows(2).position(|at| at == [0xff, 0xc0]).unwrap();
        jpeg[frame + 5..frame + 9].copy_from_slice(&[0x3e, 0x80, 0x3e, 0x80]);
        assert_eq!(as_webp(&jpeg), None, "16,000 times 16,000 pixels");
        let mut still = gif(&[stripes()]);
        still[6..10].copy_from_slice(&[0x80, 0x3e, 0x80, 0x3e]);
        assert_eq!(as_webp(&still), None);
        // A frame that is larger than the picture.
        let mut still = gif(&[stripes()]);
        let frame = still.windows(9).position(|at| at == [b',', 0, 0, 0, 0, 64, 0, 64, 0]).unwrap();
        still[frame + 5..frame + 9].copy_from_slice(&[0x80, 0x3e, 0x80, 0x3e]);
        assert_eq!(as_webp(&still), None);
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
