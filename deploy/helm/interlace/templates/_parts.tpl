{{/* Labels of one part: dict "root" $ "part" NAME. */}}
{{- define "interlace.selector" -}}
app.kubernetes.io/name: interlace
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .part }}
{{- end }}

{{- define "interlace.labels" -}}
{{ include "interlace.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
{{- end }}

{{- define "interlace.image" -}}
{{- if .Values.image.digest -}}
image: "{{ .Values.image.repository }}@{{ .Values.image.digest }}"
{{- else -}}
image: "{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}"
{{- end }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{/* Of every pod: nobody's rights, and no token of the cluster. */}}
{{- define "interlace.pod" -}}
automountServiceAccountToken: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end }}
{{- end }}

{{- define "interlace.secret" -}}
{{ .Values.keys.existingSecret | default (printf "%s-keys" .Release.Name) }}
{{- end }}

{{/* The volume of keys for pods that only check them: what they hold opens nothing but the API. */}}
{{- define "interlace.checkedKeys" -}}
name: keys
secret:
  secretName: {{ include "interlace.secret" .root }}
  items:
    {{- if .admin }}
    - {key: admin-sha256, path: admin}
    {{- end }}
    {{- if .root.Values.keys.askCallers }}
    - {key: api, path: api}
    {{- end }}
{{- end }}

{{- define "interlace.keyOptions" -}}
{{- if .Values.keys.askCallers }}
- --api-key-file=/run/keys/api
{{- end }}
{{- end }}

{{- define "interlace.nodesName" -}}
dns:{{ .Release.Name }}-nodes.{{ .Release.Namespace }}.svc:8000
{{- end }}

{{- define "interlace.probes" -}}
livenessProbe:
  httpGet: {path: /v2/health/live, port: {{ . }}}
  periodSeconds: 5
  timeoutSeconds: 3
readinessProbe:
  httpGet: {path: /v2/health/ready, port: {{ . }}}
  periodSeconds: 2
  timeoutSeconds: 2
startupProbe:
  httpGet: {path: /v2/health/live, port: {{ . }}}
  periodSeconds: 5
  failureThreshold: 360
{{- end }}
