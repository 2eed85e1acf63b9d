# Completion of arena-topo in bash 3.2 (macOS) and later, with or without bash-completion.
# Nothing runs before the first TAB. Then the program on the line is asked what can stand there;
# it prints `words`, `files` or `folders`, and below that one word a line.

_arena_topo() {
    local words quote opened redirect line cur head program value answer known=1 at=0 said=''
    COMPREPLY=()

    line=${COMP_LINE:0:COMP_POINT}
    if [ "${1##*/}" != arena-topo ] && value=$(alias -- "$1" 2>/dev/null); then
        # Another name for it, with options perhaps: they count as if they stood on the line.
        value=${value#*=\'}
        value=${value%\'}
        _arena_topo_split "$value"
        known=${#words[@]}
        line=$value${line#"$1"}
    fi
    _arena_topo_split "$line"
    if [ -n "$redirect" ]; then
        _arena_topo_options default
        return 0
    fi

    # Only a file of this name is run: what else is called `arena` could do what the line says.
    program=arena-topo
    while [ "$at" -lt "$known" ] && [ "${words[at]##*/}" != arena-topo ]; do
        at=$((at + 1))
    done
    if [ "$at" -lt "$known" ]; then
        program=${words[at]}
    else
        at=0
    fi
    if ! type -P -- "$program" >/dev/null; then
        return 0
    fi
    answer=$(_ARENA_TOPO_COMPLETE=bash command "$program" "${words[@]:at + 1}" 2>/dev/null \
        </dev/null) || return 0

    # readline replaces $2: what follows a quote, or one of COMP_WORDBREAKS. The answers are whole
    # words, so what stands before it is cut off them.
    cur=${words[${#words[@]} - 1]}
    if [ -n "$quote" ]; then
        head=${cur:0:opened}
    else
        _arena_topo_split "$2"
        quote=''
        value=${words[${#words[@]} - 1]}
        head=${cur%"$value"}
    fi
    while IFS= read -r line; do
        value=${line%%$'\t'*}
        if [ -z "$said" ]; then
            said=$line
            continue
        fi
        case $value in "$cur"*) ;; *) continue ;; esac
        value=${value:${#head}}
        case $quote in
            '') case $value in *[!-a-zA-Z0-9_@%+=:,./]*) printf -v value %q "$value" ;; esac ;;
            \') case $value in *\'*) continue ;; esac ;;
            \") case $value in *[\"\\\$\`!]*) continue ;; esac ;;
        esac
        COMPREPLY+=("$value")
    done <<<"$answer"

    case " $said " in
        *' files '*) _arena_topo_options default ;;
        *' folders '*) _arena_topo_options dirnames ;;
        *' nospace '*) _arena_topo_options nospace ;;
        *) _arena_topo_options space ;;
    esac
    case " $said " in *' keep '*) _arena_topo_options nosort ;; esac
    return 0
}

# What `complete -o` takes, for this one answer; bash 3.2 has that only for all of them.
_arena_topo_options() {
    local at=0
    if [ "${BASH_VERSINFO[0]}" -ge 4 ]; then
        [ "$1" = space ] || compopt -o "$1" 2>/dev/null || return 0
    elif [ "$1" = space ] && [ -z "$quote" ]; then
        while [ "$at" -lt "${#COMPREPLY[@]}" ]; do
            COMPREPLY[at]="${COMPREPLY[at]} "
            at=$((at + 1))
        done
    fi
}

# The words of $1 without their quotes, the last of which may be empty or not finished.
# quote is one that is open there, opened what stands before it; redirect: it names a file.
_arena_topo_split() {
    local rest=$1 word='' begun='' run char
    words=() quote='' opened=0 redirect=''
    while [ -n "$rest" ]; do
        case $quote$begun$rest in '~/'*) word=${HOME-'~'} begun=1 rest=${rest#'~'} ;; esac
        case $quote in
            '') run=${rest%%[$' \t\n\\\'"<>']*} ;;
            \') run=${rest%%\'*} ;;
            \") run=${rest%%[\"\\]*} ;;
        esac
        [ -z "$run" ] || begun=1
        word=$word$run
        char=${rest:${#run}:1}
        rest=${rest:${#run} + ${#char}}
        [ -n "$char" ] || break
        case $quote$char in
            \'\' | \"\") quote='' ;;
            \' | \") quote=$char opened=${#word} begun=1 ;;
            \\ | \"\\)
                case $quote${rest:0:1} in
                    $'\n') ;;
                    \"[!\"\\\$\`]*) word=$word$char${rest:0:1} begun=1 ;;
                    *) word=$word${rest:0:1} begun=1 ;;
                esac
                rest=${rest:1}
                ;;
            \< | \>)
                # A number before it, or &, is no word: it says which stream.
                case $word in *[!0-9\&]*) [ -n "$redirect" ] || words+=("$word") ;; esac
                rest=${rest#"${rest%%[!<>&|]*}"}
                word='' begun='' redirect=1
                ;;
            *)
                if [ -n "$begun" ]; then
                    [ -n "$redirect" ] || words+=("$word")
                    word='' begun='' redirect=''
                fi
                ;;
        esac
    done
    words+=("$word")
}

if [ "${BASH_VERSINFO[0]}" -ge 4 ]; then
    complete -F _arena_topo arena-topo
else
    complete -o default -o nospace -F _arena_topo arena-topo
fi
